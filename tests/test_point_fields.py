"""One declaration a field of `Point`: what is derived from it is whole, and a field is added in one file."""

import inspect
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, fields, make_dataclass, replace
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import tclab
from tclab import InputError, Point
from tclab.lab.panel._panel_state import PanelState
from tclab.sweeps.config._fields import declarations, declare, switch
from tclab.sweeps.store._results import Results
from tclab.sweeps.store._rows import SCHEMA, columns_of, point_of, table
from tclab.training._step import Step

DECLARED = declarations(Point)
PACKAGE = Path(tclab.__file__).parent
# values that differ from the defaults, for each field that can be changed by itself
OTHER = {
    "scale": 0.5, "model": "hetero_cell_production", "strategy": "edge_mask", "batch_size": 2, "networks": 3,
    "mode": "data", "device": "cpu", "ranks": 2, "dtype": "float64", "steps": 1, "warmup": 1, "seed": 1,
    "num_deletions": 1, "metabolism": "used", "variant": "homogeneous", "hidden": 32, "layers": 1,
    "workers": 2, "prefetch_factor": 3, "start_method": "spawn", "persistent_workers": True, "store": "json",
    "pin_memory": True, "allocator": "keep_pages", "loop": "lightning",
    "loss": "mle_wass_supcr", "optimizer": "plain", "accumulate": 2, "overheads": ("print_loss",),
    "micro_batch": 1, "checkpoint": True, "compile": True,
}  # fmt: skip


@pytest.mark.parametrize("name", [field.name for field in fields(Point)])
def test_a_field_is_declared_whole(name):
    declared = DECLARED[name]
    assert declared.meaning.endswith(".")
    assert declared.column in ("text", "whole", "real", "flag")
    assert name in SCHEMA.names
    assert f"- `{name}` ({declared.default!r}): {declared.meaning}" in " ".join(Point.__doc__.split("\n    "))
    if declared.column in ("whole", "real") and name != "seed":
        assert declared.unit
    if declared.step:
        assert name in inspect.signature(Step).parameters
    if declared.column == "flag":
        for wrong in (1, "yes"):
            with pytest.raises(InputError, match=rf"{name} is {wrong!r}, expected True or False"):
                Point(**{name: wrong})
    elif declared.column in ("whole", "real"):
        with pytest.raises(InputError, match=f"{name} is -1, expected"):
            Point(**{name: -1})
    else:
        with pytest.raises(InputError):
            Point(**{name: 3.5})
    with pytest.raises(InputError) if not (declared.optional or declared.usual is not None) else _nothing():
        Point(**{name: None})


class _nothing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def test_a_field_without_a_declaration_is_refused():
    @dataclass
    class Bare:
        speed: int = 3

    with pytest.raises(TypeError, match="the field speed of Bare has no declaration"):
        declarations(Bare)
    made = make_dataclass("Made", [("pair", dict[str, int], declare(None, "two.", switch))])
    with pytest.raises(TypeError, match="no column holds the field pair"):
        declarations(made)


def test_a_points_fields_are_in_its_signature():
    shown = inspect.signature(Point).parameters
    assert list(shown) == list(DECLARED)
    assert {name: parameter.default for name, parameter in shown.items()} == {
        name: declared.default for name, declared in DECLARED.items()
    }


@pytest.mark.parametrize("name", OTHER)
def test_a_field_goes_through_json_rows_and_grid(name):
    point = Point(**{name: OTHER[name]})
    assert Point.from_dict(json.loads(json.dumps(point.to_dict()))) == point
    row = {**dict.fromkeys(SCHEMA.names), **columns_of(point), "network_names": "physical,tflink,regulatory"}
    if name not in ("networks", "variant"):
        assert point_of(row) == replace(point, networks=("physical", "tflink", "regulatory"))
    if DECLARED[name].grid == name and name not in ("networks", "device", "ranks"):
        few = {"gpus": 0, "scale": 0.02, "networks": 1, "models": "hetero_cell", "strategies": "node_mask"}
        typed = "+".join(OTHER[name]) if name == "overheads" else str(OTHER[name])
        points = tclab.grid(**few | {"batch_sizes": 1, name: typed})
        assert {getattr(one, name) for one in points} == {OTHER[name]}


def test_the_panel_has_the_fields_that_say_so():
    of_the_panel = {declared.grid for declared in DECLARED.values() if declared.panel}
    of_the_sweep = {"gpus", "results", "budget_seconds", "retry"}
    assert {field.name for field in fields(PanelState)} == of_the_panel | of_the_sweep


def run_python(code, folder):
    """Run code in a process of its own that imports tclab from a folder."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-3000:]


NO_FILE_IS_OPENED = """
import sys, json
import tclab
from tclab.sweeps.store._rows import columns_of, point_of
gone = {"graph": "/no/such/folder", "networks": ["physical", "tflink"], "perturbations": "/no/such/file"}
tclab.Point()  # once before: what Python imports late is not what is asked
events = []
def listen(event, arguments):
    if event == "open" or event.startswith(("os.listdir", "os.scandir", "glob.", "subprocess.", "import")):
        events.append((event, arguments[:1]))
sys.addaudithook(listen)
one = tclab.Point(strategy="edge_mask", scale=0.3, networks=3, device="cuda", workers=2)
moved = tclab.Point(**gone)
again = tclab.Point.from_dict(json.loads(json.dumps(moved.to_dict())))
row = {**columns_of(moved), "network_names": "physical,tflink"}
back = point_of(row)
assert events == [], events
assert moved == again == back
open("/dev/null").close()
assert events, "the hook hears nothing"
"""


def test_making_a_point_or_reading_one_back_opens_no_file():
    run_python(NO_FILE_IS_OPENED, PACKAGE.parent)


MADE_UP_FIELD = """
    sparkle: int = declare(
        3,
        "how much the model sparkles.",
        whole_number(1),
        unit="sparks",
        equivalence="reference",
        advised=True,
        caution="It dazzles.",
    )
"""

USES_IT = """
import inspect, json
import tclab
from tclab import Point, InputError
from tclab import fits, grid
from tclab.sweeps.analysis import _advise, _compare_runs
from tclab.sweeps.store._rows import SCHEMA, columns_of
from tclab.sweeps.execution._measure import equivalence_of

point = Point(sparkle=5, scale=0.02, batch_size=1, networks=1, workers=0, device="cpu")
assert inspect.signature(Point).parameters["sparkle"].default == 3
assert "- `sparkle` (3): how much the model sparkles. Unit: sparks." in Point.__doc__
for wrong in (0, "many"):
    try:
        Point(sparkle=wrong)
    except InputError as error:
        assert f"sparkle is {wrong!r}, expected a whole number of at least 1" in str(error), error
    else:
        raise AssertionError("not checked")
assert Point.from_dict(json.loads(json.dumps(point.to_dict()))) == point
assert str(SCHEMA.field("sparkle").type) == "int64"
assert columns_of(point)["sparkle"] == 5
assert {p.sparkle for p in grid(sparkle="1,2", gpus=0, scale=0.02, networks=1, batch_sizes=1)} == {1, 2}
assert "sparkle" in _compare_runs.SETTINGS
assert "sparkle" in _advise._CHANGES and _advise._FIELDS["sparkle"].caution == "It dazzles."
assert fits(point).batch == fits(Point(**{**point.to_dict(), "sparkle": 1})).batch
first, second = equivalence_of(point), equivalence_of(Point(**{**point.to_dict(), "sparkle": 1}))
assert first is not second  # what the check depends on was derived
assert set(Results(folder).frame()["status"]) == {"ok"}  # rows of before the field are read
"""


@pytest.mark.slow
def test_a_field_is_added_in_one_file(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "tclab", ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "tclab" / "sweeps" / "config" / "_point.py"
    text = file.read_text()
    place = text.index("    metabolism: str = declare(")
    file.write_text(text[:place] + MADE_UP_FIELD.lstrip("\n") + text[place:])
    rows, before = tmp_path / "rows", Point(scale=0.02, device="cpu")
    Results(rows).write(before, table([{**columns_of(before), "stage": "step", "status": "ok"}]))
    run_python(f"folder = {str(rows)!r}\n{USES_IT}", tmp_path)


def test_a_run_makes_its_point_definite_once(monkeypatch):
    made = []
    check = Point.__post_init__
    monkeypatch.setattr(Point, "__post_init__", lambda self: made.append(1) or check(self))
    point = Point(scale=0.02, networks=1, batch_size=1, workers=0, steps=1, warmup=0, device="cpu", mode="data")
    made.clear()
    assert set(tclab.run(point)["status"]) == {"ok"}
    assert len(made) == 1
    definite = point.resolved()
    assert definite.resolved() is definite


ODD = [
    None, "", " ", "x", "x" * 5000, "a\0b", "\ud800", b"step", bytearray(b"x"), 0, -1, 1.5, -0.0, float("nan"),
    float("inf"), 1e308, 10**30, 1 << 63, 10**5000, True, False, 1j, Decimal("1.5"), Fraction(1, 2), [], [[]], [None],
    [1, 2], ["x", ["y"]], ("step", 3), {}, {"a": 1}, {1}, frozenset(), range(3), iter([1]), object(), int, len,
    Path("."), np.int64(3), np.float32(0.5), np.array([1, 2]), np.array("step"), np.str_("step"), torch.tensor([1, 2]),
    torch.tensor(1), slice(2), Ellipsis, NotImplemented, datetime.now(), pd.NA, pd.NaT,
]  # fmt: skip


@pytest.mark.parametrize("name", [field.name for field in fields(Point)])
def test_any_value_of_a_field_makes_a_point_or_a_sentence(name):
    sentences = []
    for value in ODD:
        try:
            point = Point(**{name: value})
        except InputError as error:
            sentences.append(str(error))
            continue
        assert Point.from_dict(json.loads(json.dumps(point.to_dict()))) == point  # a worker can be asked for it
        assert len({point}) == 1
        assert len(table([columns_of(point)])) == 1  # and its row be kept
    assert len(sentences) > len(ODD) // 2
    assert all(name.removesuffix("s") in sentence and "\n" not in sentence for sentence in sentences)


def test_a_number_of_networks_takes_those_first_that_the_model_reads():
    dango = tclab.Point(scale=0.02, model="dango", strategy="indices", networks=3)
    assert list(dango.cell_graph().networks) == [
        "string12_0_neighborhood", "string12_0_fusion", "string12_0_cooccurence"
    ]  # fmt: skip
    assert len(tclab.Point(scale=0.02, model="dango", strategy="indices", networks=9).cell_graph().networks) == 9
    assert list(tclab.Point(scale=0.02, networks=2).cell_graph().networks) == ["regulatory", "physical"]
