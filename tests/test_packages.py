"""The architecture: a package imports only those above it, no imports run in circles, names are private or not.

And a docstring that lists its arguments lists all of them, and no other; ruff holds that there is one.
"""

import ast
import inspect
import re
from collections import Counter
from dataclasses import fields, is_dataclass
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from time import perf_counter_ns
from types import ModuleType

import pytest

import tclab

FOLDER = Path(tclab.__file__).parent
# in the order in which they may import one another; single modules of `tclab/` itself stand above all of them
PACKAGES = ["timing", "trace", "graph", "perturbation", "readers", "message_passing", "masking", "models", "training",
            "sweeps", "lab", "case_study", "command"]  # fmt: skip
STANDALONE = {"timing", "trace"}  # serve somebody without a graph: they import only the single modules
# modules of `tclab/sweeps/`, in the order in which they may import one another
SWEEPS = ["_fields", "_point", "_point_inputs", "_grid", "config", "_fingerprint", "_rows", "_overheads",
          "_ranks", "_measure", "_progress", "_run", "_worker", "_race_points", "predict", "_compare",
          "_advise", "_slurm", "_sweep"]  # fmt: skip
MODULES = {
    ".".join(path.relative_to(FOLDER.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(FOLDER.rglob("*.py"))
}


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
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in MODULES else node.module for name in names}
    return found - {module}


def part(module, depth):
    """Return the name at some depth of a dotted one: of tclab.sweeps._rows at 1 sweeps; "" where none is."""
    names = module.split(".")
    return names[depth] if names[0] == "tclab" and len(names) > depth else ""


def test_a_package_imports_only_those_above_it():
    assert sorted(path.parent.name for path in FOLDER.glob("*/__init__.py")) == sorted(PACKAGES)
    above = {name: {name} if name in STANDALONE else {*PACKAGES[: i + 1]} for i, name in enumerate(PACKAGES)}
    for module in MODULES:
        used = {part(name, 1) for name in imports(module)} & {*PACKAGES}
        package = part(module, 1)
        assert package in ("", "command") or "tclab" not in imports(module), f"{module} imports the whole of tclab"
        if package:
            assert used <= above.get(package, set()), module


def test_a_part_of_sweeps_imports_only_those_above_it():
    for module in MODULES:
        if part(module, 1) == "sweeps" and part(module, 2):
            used = {part(name, 2) for name in imports(module) if part(name, 1) == "sweeps"}
            assert used <= {*SWEEPS[: SWEEPS.index(part(module, 2)) + 1]}, module


def test_imports_run_in_no_circle():
    graph = {module: imports(module) & MODULES.keys() for module in MODULES}
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES)  # a CycleError names the circle


def test_what_draws_is_imported_in_lab_alone_and_what_unpickles_nowhere():
    for module, path in MODULES.items():
        outside = {name.split(".")[0] for name in imports(module)}
        assert part(module, 1) == "lab" or not outside & {"altair", "ipywidgets", "IPython"}, module
        assert not outside & {"pickle", "cloudpickle", "dill", "joblib"}, module
        assert "torch.load(" not in path.read_text(encoding="utf-8"), module


def test_a_file_name_says_which_file_it_is():
    times = Counter(path.name for path in MODULES.values() if path.name != "__init__.py")
    assert [name for name, number in times.items() if number > 1] == []


def test_what_is_public_has_one_name_in_one_place_and_there_are_at_most_110():
    places = {}
    for module in (name for name in MODULES if not re.search(r"\._", name)):
        exported = import_module(module)
        for name in getattr(exported, "__all__", []):
            if not isinstance(value := getattr(exported, name), ModuleType):
                places.setdefault(id(value), []).append(f"{module}.{name}")
    assert [names for names in places.values() if len(names) > 1] == []
    assert 100 < len(places) <= 111  # the library's 110, and `main` of the command


def test_type_checkers_read_the_names_that_a_package_offers():
    for stub in FOLDER.rglob("__init__.pyi"):
        names = set()
        for node in ast.parse(stub.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom):  # `x as x` is offered, and `x` is not
                names |= {alias.asname for alias in node.names if alias.asname}
            else:
                names |= {target.id for target in node.targets}
        package = ".".join(stub.parent.relative_to(FOLDER.parent).parts)
        assert names - {"__version__"} == set(import_module(package).__all__), stub


def test_what_is_private_to_a_module_is_imported_by_no_other():
    for module in MODULES:
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "tclab":
                names = [alias.name for alias in node.names if f"{node.module}.{alias.name}" not in MODULES]
                assert not [name for name in names if re.match("_[^_]", name)], f"{module} imports {names}"


# ---- lists of arguments

SECTION = re.compile(r"\*\*Arguments:\*\*(.*?)(?=\n\s*\*\*(?:Returns|Raises|Yields)|\Z)", re.DOTALL)
PUBLIC = [module for module, path in MODULES.items() if "__all__" in path.read_text(encoding="utf-8")]


def parameters(thing):
    """Return the names that a list of arguments must hold."""
    if is_dataclass(thing):
        return [field.name for field in fields(thing) if field.init and not field.name.startswith("_")]
    found = inspect.signature(thing.__init__ if isinstance(thing, type) else thing).parameters
    return [name for name in found if name not in ("self", "cls") and not name.startswith("_")]


def wrong_in_list(thing):
    """Return the parameters that a docstring with a list of arguments leaves out, and what it lists that is gone."""
    section = SECTION.search(inspect.getdoc(thing) or "")
    if section is None or not parameters(thing):
        return []
    named = {name.strip("*") for name in re.findall(r"`([\w*]+)`", section[1])}
    elsewhere = re.search(r"\bas for `|\bas `|\bsee `", section[1])  # another docstring has the rest
    missing = [] if elsewhere else [name for name in parameters(thing) if name not in named]
    first = re.findall(r"^\s*- `(\w+)`", section[1], re.MULTILINE)
    return missing + [name for name in first if name not in {*parameters(thing), *inspect.get_annotations(thing)}]


def public(package):
    module = import_module(package)
    things = {name: getattr(module, name) for name in module.__all__}
    for name, thing in things.items():
        if isinstance(thing, type):
            methods = {key: getattr(one, "__func__", one) for key, one in vars(thing).items() if key[0] != "_"}
            yield from ((f"{name}.{key}", one) for key, one in methods.items() if inspect.isfunction(one))
        if inspect.isfunction(thing) or isinstance(thing, type):
            yield name, thing


@pytest.mark.parametrize("package", PUBLIC)
def test_a_list_of_arguments_in_a_docstring_is_whole(package):
    assert {name: wrong for name, thing in public(package) if (wrong := wrong_in_list(thing))} == {}


# what users write, and so what no change may take away or give another meaning
STAY = {
    "tclab": "CellGraph Point run sweep grid rows fits advise check compare view SharedGraph InputError",
    "tclab.CellGraph": "synthetic from_folder from_edges from_hetero_data networks",
    "tclab.masking": "names get register Strategy Batch",
    "tclab.message_passing": "SharedView View SharedSAGEConv SharedGINConv SharedGCNConv SharedGATv2Conv "
    "SharedHeteroConv to_grid to_rows",
    "tclab.models": "HeteroCell Dango PygModel register",
    "tclab.models.HeteroCell": "profiling production",
    "tclab.models.Dango": "string12",
    "tclab.timing": "Ledger race race_commands syncs spike_in receipt Communication lightning_callback profile "
    "loader_times",
    "tclab.timing.Ledger": "steps stage frame",
    "tclab.trace": "analyze compare record TraceError",
    "tclab.readers": "edge_list read_folder read_perturbations ReadError",
    "tclab.lab": "Panel LiveSweep charts findings",
}


@pytest.mark.parametrize("owner", STAY)
def test_names_that_users_write_stay(owner):
    kind = resolve_name(owner)
    assert {*STAY[owner].split()} <= {*dir(kind), *getattr(kind, "__dataclass_fields__", ())}


def test_a_race_reads_a_clock_of_nanoseconds():
    assert inspect.signature(tclab.timing.race).parameters["clock"].default is perf_counter_ns
