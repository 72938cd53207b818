"""The house: a room uses the rooms above it, never one below; notebook packages stay in lab."""

import ast
from pathlib import Path

import pytest

import tclab

PACKAGE = Path(tclab.__file__).parent
ROOMS = [
    "timing",
    "graph",
    "perturbation",
    "readers",
    "message_passing",
    "masking",
    "models",
    "training",
    "trace",
    "sweeps",
    "lab",
]


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: a relative import"
            yield node.module


def test_every_folder_is_a_room():
    assert sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")) == sorted(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_uses_those_above_it(room):
    above = ROOMS[: ROOMS.index(room) + 1] if room not in ("timing", "trace") else [room]
    for path in (PACKAGE / room).rglob("*.py"):
        for module in imports(path):
            if module.startswith("tclab."):
                used = module.split(".")[1]
                if used == "errors" and room not in ("timing", "trace"):
                    continue
                # from_folder reaches the readers by a late import, the one exception
                if (path.name, used) == ("cell_graph.py", "readers"):
                    continue
                assert used in above, f"{path.relative_to(PACKAGE)} imports {module}"


def test_notebook_packages_are_loaded_in_lab_alone():
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] != "lab":
            loud = {module.split(".")[0] for module in imports(path)} & {"altair", "ipywidgets", "IPython"}
            assert not loud, f"{path.relative_to(PACKAGE)} imports {loud}"


def test_strategies_and_views_know_no_genes():
    for room in ("masking", "message_passing"):
        for path in (PACKAGE / room).glob("*.py"):
            words = [n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)]
            assert "gene" not in words, path.name


def test_files_can_be_read_in_one_sitting():
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 350, path.relative_to(PACKAGE)


def test_nothing_is_opened_by_pickle():
    for path in PACKAGE.rglob("*.py"):
        assert "pickle" not in set(imports(path)), path.relative_to(PACKAGE)
        assert "torch.load(" not in path.read_text(), path.relative_to(PACKAGE)
