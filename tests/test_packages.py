"""The architecture: a package imports only those above it, no imports run in circles, and names are private or not."""

import ast
import re
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import tclab

FOLDER = Path(tclab.__file__).parent
# in the order in which they may import one another; single modules of `tclab/` itself stand above all of them
PACKAGES = [
    "timing",
    "trace",
    "graph",
    "perturbation",
    "readers",
    "message_passing",
    "masking",
    "models",
    "training",
    "sweeps",
    "lab",
    "case_study",
    "command",
]
STANDALONE = {"timing", "trace"}  # serve somebody without a graph: they import only the single modules
SWEEPS = ["config", "store", "execution", "predict", "analysis", "slurm", "_sweep"]


def dotted(path):
    name = ".".join(path.relative_to(FOLDER.parent).with_suffix("").parts)
    return name.removesuffix(".__init__")


MODULES = {dotted(path): path for path in sorted(FOLDER.rglob("*.py"))}


@cache
def tree(module):
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


@cache
def imports(module):
    """Return all that a module imports, inside functions and for type checks too, as dotted names."""
    found = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found.add(submodule if submodule in MODULES else node.module)
    return found - {module}


def parts(module, depth):
    """Return the name at some depth of a dotted one: of tclab.sweeps.store._rows at 1 sweeps; None where none is."""
    names = module.split(".")
    return names[depth] if names[0] == "tclab" and len(names) > depth else None


def of_package(package):
    return [module for module in MODULES if parts(module, 1) == package]


def test_every_folder_is_one_of_the_packages():
    assert sorted(path.parent.name for path in FOLDER.glob("*/__init__.py")) == sorted(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_those_above_it(package):
    above = {package} if package in STANDALONE else {*PACKAGES[: PACKAGES.index(package) + 1]}
    for module in of_package(package):
        for imported in imports(module):
            assert imported != "tclab", f"{module} imports the whole of tclab"
            if parts(imported, 1) in PACKAGES:
                assert parts(imported, 1) in above, f"{module} imports {imported}"


def test_single_modules_import_no_package():
    for module in MODULES:
        if parts(module, 1) and parts(module, 1) not in PACKAGES:
            used = {parts(imported, 1) for imported in imports(module)} & {*PACKAGES}
            assert not used, f"{module} imports {used}"


@pytest.mark.parametrize("part", SWEEPS)
def test_a_part_of_sweeps_imports_only_those_above_it(part):
    above = SWEEPS[: SWEEPS.index(part) + 1]
    for module in of_package("sweeps"):
        if parts(module, 2) == part:
            for imported in imports(module):
                if parts(imported, 1) == "sweeps":
                    assert parts(imported, 2) in above, f"{module} imports {imported}"


def test_imports_run_in_no_circle():
    graph = {module: imports(module) & MODULES.keys() for module in MODULES}
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES)  # a CycleError names the circle


def test_what_draws_is_imported_in_lab_alone():
    for module in MODULES:
        drawing = {name.split(".")[0] for name in imports(module)} & {"altair", "ipywidgets", "IPython"}
        assert not drawing or parts(module, 1) == "lab", f"{module} imports {drawing}"


def test_strategies_and_views_know_no_genes():
    for package in ("masking", "message_passing"):
        for module in of_package(package):
            words = [node.value for node in ast.walk(tree(module)) if isinstance(node, ast.Constant)]
            assert "gene" not in words, module


def test_nothing_is_opened_by_pickle():
    for module, path in MODULES.items():
        assert not imports(module) & {"pickle", "cloudpickle", "dill", "joblib"}, module
        assert "torch.load(" not in path.read_text(encoding="utf-8"), module


def test_a_file_name_says_which_file_it_is():
    times = Counter(path.name for path in MODULES.values() if path.name != "__init__.py")
    assert [name for name, number in times.items() if number > 1] == []


def test_what_is_public_has_one_name_in_one_place():
    places = {}
    for module in (name for name in MODULES if not re.search(r"\._", name)):
        exported = import_module(module)
        for name in getattr(exported, "__all__", []):
            if not isinstance(value := getattr(exported, name), ModuleType):
                places.setdefault(id(value), []).append(f"{module}.{name}")
    assert len(places) > 150
    assert [names for names in places.values() if len(names) > 1] == []


def private(name):
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.parametrize("package", PACKAGES)
def test_what_is_private_to_a_module_is_used_by_no_other(package):
    """Names that begin with an underscore: imported, or taken from a module as its attributes."""
    for module in of_package(package):
        modules = set()  # names that stand for modules of tclab in this one
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "tclab":
                for alias in node.names:
                    if f"{node.module}.{alias.name}" in MODULES:
                        modules.add(alias.asname or alias.name)
                    else:
                        assert not private(alias.name), f"{module} imports {node.module}.{alias.name}"
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                assert not private(node.attr), f"{module} uses {node.value.id}.{node.attr}"
