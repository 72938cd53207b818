"""The panel: its state is a sweep's, its rows are a sweep's, and what goes wrong is said in it."""

import asyncio
import json
import re
import shlex
import threading
import time
from dataclasses import replace

import pytest

import tclab
from tclab import InputError, lab
from tclab.lab import panel_view, panel_words, weighing
from tclab.lab.live import project_path, under_way
from tclab.lab.panel_view import PanelView
from tclab.lab.panel_words import ahead, duration_text, failures, points_table, weighed
from tclab.lab.throttle import Throttle
from tclab.lab.weighing import Weighing
from tclab.masking.delta import Delta
from tclab.sweeps import Results, close_children, expected_batch_bytes, read_rows
from tclab.sweeps.results import SCHEMA_VERSION
from tclab.timing.units import bytes_text

SMALL = {
    "scale": 0.02,
    "networks": 2,
    "steps": 1,
    "strategies": "edge_mask,node_mask",
    "batch_sizes": "1,2",
    "gpus": 0,
}


@pytest.fixture(autouse=True, scope="module")
def no_child_is_left():
    yield
    close_children()


@pytest.fixture
def front_end(monkeypatch):
    def refused(*arguments, **options):
        raise AssertionError("an Output widget can hang papermill")

    monkeypatch.setenv("JPY_SESSION_NAME", "some.ipynb")
    monkeypatch.setattr("ipywidgets.Output.__init__", refused)


def view_of(folder, **parameters):
    view = PanelView(lab.Panel(results=str(folder), **{**SMALL, **parameters}))
    view.wait()
    return view


def until(seen, seconds=120):
    end = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < end
        time.sleep(0.01)


def through(view):
    view.panel.sweep.join()
    view.wait()


# What it is set to


def parameters_of(root, notebook):
    cells = json.loads((root / "notebooks" / notebook).read_text())["cells"]
    cell = next(cell for cell in cells if "parameters" in cell["metadata"].get("tags", []))
    found = {}
    exec("".join(cell["source"]), {}, found)
    return found


def test_a_state_has_the_parameters_of_the_sweep_notebook(root):
    names = set(lab.PanelState.__dataclass_fields__)
    assert names == set(parameters_of(root, "explore.ipynb"))
    # a panel sweeps here: what tells a cluster about its jobs is left as the sweep notebook has it
    assert set(parameters_of(root, "sweep.ipynb")) - names == {
        "executor", "partition", "gpus_per_node", "time", "machines", "points_per_job"
    }  # fmt: skip
    assert names <= set(parameters_of(root, "sweep.ipynb"))


STATES = [
    {},
    {"scale": 0.1234, "hidden": 32, "layers": 2, "deleted": 1, "dtype": "float64", "mode": "model", "gpus": 0},
    {
        "networks": "1,3,9",
        "batch_sizes": "8",
        "strategies": "subgraph",
        "steps": 7,
        "seed": 3,
        "budget_seconds": 2.5,
    },
    {"models": "dango", "strategies": "indices", "networks": "all", "gpus": 2},
    {"networks": "physical,regulatory", "results": "2024"},
    {"compile": True, "retry": True, "strategies": "gpu_mask_cached", "gpus": 0},
]


@pytest.mark.parametrize("parameters", STATES, ids=str)
def test_its_line_of_papermill_and_its_python_are_the_same_points(parameters, root):
    state = lab.PanelState.of(**parameters)
    program, notebook, _, *pairs = shlex.split(state.papermill())
    assert (program, notebook) == ("papermill", "notebooks/sweep.ipynb")
    # as papermill reads them: `-p` makes numbers of what looks like one, `-r` leaves text
    from papermill.cli import _resolve_type

    given = {n: v if flag == "-r" else _resolve_type(v) for flag, n, v in zip(*[iter(pairs)] * 3, strict=True)}
    cells = json.loads((root / "notebooks" / "sweep.ipynb").read_text())["cells"]
    (source,) = ("".join(cell["source"]) for cell in cells if cell["id"] == "points")
    names = {**parameters_of(root, "sweep.ipynb"), **given, "tclab": tclab, "lab": lab}
    exec(source.removesuffix("len(points)"), names)
    assert names["points"] == state.points()
    assert str(given["results"]) == state.results
    assert ((given["budget_seconds"] or None), given["retry"]) == (state.budget, state.retry)

    swept = {}
    code = state.python().replace("import tclab", "").replace("tclab.sweep", "swept")
    exec(code, {"tclab": tclab, "swept": lambda points, **more: swept.update(points=points, **more)})
    assert swept == {"points": state.points(), "results": state.results, **state.options()}


@pytest.mark.parametrize("parameters", STATES, ids=str)
def test_the_form_shows_a_state_and_gives_it_back(parameters, tmp_path):
    state = lab.PanelState.of(**{**parameters, "results": str(tmp_path)})
    from tclab.lab.panel_form import PanelForm

    assert PanelForm(state, 0).read().points() == state.points()
    assert PanelForm(state, 0).read().options() == state.options()


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"scale": -1}, "scale is -1.0, expected a number above 0"),
        ({"strategies": "nodemask"}, "did you mean 'node_mask'"),
        ({"batch_sizes": "1,none"}, "batch_sizes is 'none', expected a whole number"),
        ({"hidden": 1}, "hidden is 1, expected a whole number of at least 2"),
        ({"modes": "step"}, "unknown parameter 'modes'; did you mean 'mod"),
        ({"models": "hetero_cell,dango", "strategies": "node_mask"}, "model is hetero_cell, dango, expected one"),
        ({"budget_seconds": -3}, "budget_seconds is -3, expected a number from 0 up"),
        ({"compile": "perhaps"}, "compile is 'perhaps', expected True or False"),
        ({"retry": "yes"}, "retry is 'yes', expected True or False"),
        ({"graph": "nowhere"}, "expected 'synthetic' or a folder that exists"),
    ],
)
def test_what_is_out_of_range_is_said_at_once(parameters, words):
    with pytest.raises(InputError, match=words):
        lab.Panel(**{**SMALL, **parameters})


# Running


def test_headless_it_runs_the_sweep_and_shows_one_picture(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    panel = lab.Panel(results=str(tmp_path), **SMALL)
    asyncio.run(panel.show())
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert [type(picture).__name__ for picture in shown] == ["LayerChart"]
    rows = panel.rows()
    assert (rows["status"] == "ok").all()
    # the same rows as a sweep's: it finds them all
    again = tclab.sweep(panel.state.points(), results=tmp_path)
    assert again["measured_at"].tolist() == rows["measured_at"].tolist()


def test_a_persons_way_through_it(front_end, tmp_path):
    view = view_of(tmp_path / "rows")
    assert (view.run.disabled, view.stop.disabled, view.resume.disabled) == (False, True, True)
    assert "4 points · heaviest batch about" in view.ahead.value
    assert not (tmp_path / "rows").exists()  # looking makes no folder

    view.form.batch_sizes.value = "1,2,3"
    view.wait()
    assert "6 points" in view.ahead.value
    view.run.click()
    assert (view.run.disabled, view.stop.disabled) == (True, False)
    until(lambda: view.panel.sweep.done >= 1)
    view.stop.click()
    through(view)
    done = view.panel.sweep.done
    assert done < 6
    assert view.status.value == f"Stopped: {done} of 6 points · Resume goes on"
    assert "edge_mask" in view.table.value

    view.form.batch_sizes.value = "1"  # a mind that was changed: Resume is the stopped sweep's nevertheless
    view.wait()
    view.resume.click()
    through(view)
    assert view.panel.sweep.done == 6
    assert view.status.value.startswith("Through: 6 of 6 points")
    assert view.resume.disabled
    assert len(Results(tmp_path / "rows").kept()) == 6

    # the folder is opened later, by another kernel
    later = view_of(tmp_path / "rows")
    assert later.status.value == "The last sweep here: 6 of 6 points."
    assert later.table.value == view.table.value
    assert len(later.panel.rows()) > 0


def test_a_sweep_that_was_cut_off_is_there_and_goes_on(front_end, tmp_path):
    state = lab.PanelState.of(results=str(tmp_path), **SMALL)
    tclab.sweep(state.points()[:1], results=tmp_path)
    state.save()  # as a kernel that was killed after its first point leaves it
    view = view_of(tmp_path, strategies="gpu_mask")
    assert view.status.value == "The last sweep here: 1 of 4 points. Resume goes on with it."
    assert not view.resume.disabled
    view.resume.click()
    through(view)
    assert view.form.strategies.value == ("edge_mask", "node_mask")
    assert len(Results(tmp_path).kept()) == 4


def test_a_headless_sweeps_folder_is_shown_and_goes_on(front_end, tmp_path):
    state = lab.PanelState.of(results=str(tmp_path), **SMALL)
    tclab.sweep(state.points()[:3], results=tmp_path)
    view = view_of(tmp_path, batch_sizes="8")
    assert view.status.value == "The last sweep here: 3 of 4 points. Resume goes on with it."
    tclab.sweep([tclab.Point(scale=0.02, networks=1, workers=0, steps=1)], results=tmp_path)
    other = view_of(tmp_path)
    assert other.status.value == "4 points are here, of settings that a panel has no field for."
    assert (other.resume.disabled, other.load.disabled) == (True, True)


def test_settings_that_cannot_be_here_are_said_and_hinder_nothing(front_end, tmp_path):
    state = lab.PanelState.of(results=str(tmp_path), **SMALL)
    tclab.sweep(state.points()[:1], results=tmp_path)
    replace(state, strategies="of_another_kernel").save()
    view = view_of(tmp_path)
    assert view.status.value.startswith("1 point is here; the last sweep cannot go on here: unknown strategy")
    assert "edge_mask" in view.table.value
    assert (view.run.disabled, view.resume.disabled) == (False, True)
    assert view.message.value == ""


def test_a_folder_that_is_read_while_a_sweep_begins_leaves_it_alone(front_end, tmp_path, monkeypatch):
    view = view_of(tmp_path)
    reading = panel_view.kept_in

    def slowly(*asked):
        found = reading(*asked)
        view._start()  # Run is pressed meanwhile
        return found

    monkeypatch.setattr(panel_view, "kept_in", slowly)
    tmp_path.mkdir(exist_ok=True)
    assert view._open() == ""
    assert view.panel.sweep is not None
    view.stop.click()
    through(view)


def test_a_cell_run_again_finds_the_sweep_that_is_under_way(front_end, tmp_path):
    view = view_of(tmp_path, batch_sizes=",".join(map(str, range(1, 40))))  # it is not through by then
    view.run.click()
    again = view_of(tmp_path, strategies="gpu_mask")
    assert again.panel.sweep is view.panel.sweep is under_way(tmp_path)
    assert again.form.strategies.value == ("edge_mask", "node_mask")
    assert not again.stop.disabled
    again.stop.click()
    through(again)
    assert again.status.value.startswith("Stopped")
    assert under_way(tmp_path) is None


# What goes wrong


def test_bad_input_is_said_and_cannot_be_run(front_end, tmp_path):
    view = view_of(tmp_path)
    view.form.batch_sizes.value = "1,x"
    view.wait()
    assert "batch_sizes is &#x27;x&#x27;, expected a whole number" in view.message.value
    assert view.run.disabled
    view.form.batch_sizes.value = "1"
    view.wait()
    assert view.message.value == ""
    assert not view.run.disabled
    view.form.strategies.value = ()
    view.wait()
    assert view.run.disabled


def test_a_folder_that_cannot_be_written_is_said(front_end, tmp_path):
    (tmp_path / "file").write_text("")
    view = view_of(tmp_path / "file" / "rows")
    view.run.click()
    view.wait()
    assert "expected a folder that can be written" in view.message.value
    assert not view.run.disabled


def test_a_folder_of_a_newer_version_is_said_and_left_alone(front_end, tmp_path, monkeypatch):
    state = lab.PanelState.of(results=str(tmp_path), **SMALL)
    with monkeypatch.context() as newer:
        newer.setattr("tclab.sweeps.results.SCHEMA_VERSION", SCHEMA_VERSION + 1)
        tclab.sweep(state.points()[:1], results=tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match="written by a newer tclab"):
        Results(tmp_path).frame()
    view = view_of(tmp_path)
    assert "written by a newer tclab" in view.message.value
    assert "choose another results folder" in view.message.value
    assert view.run.disabled
    view.form.results.value = str(tmp_path / "other")
    view.wait()
    assert view.message.value == ""
    assert not view.run.disabled
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_fails_is_in_the_log_and_in_the_picture(front_end, tmp_path):
    view = view_of(tmp_path, deleted=10_000, strategies="node_mask", batch_sizes="1")
    view.run.click()
    through(view)
    assert "node_mask · batch 1: failed: " in view.failed.value
    assert "failed" in str(view.chart._chart.chart.to_dict())


def test_a_model_offers_what_serves_it(front_end, tmp_path):
    view = view_of(tmp_path)
    view.form.model.value = "dango"
    view.wait()
    assert view.form.strategies.value == ("indices",)
    assert "node_mask" not in view.form.strategies.options
    assert view.form.layers.disabled
    assert not view.form.hidden.disabled


# Its parts


def test_failed_points_are_tried_again_where_that_is_asked_for(front_end, tmp_path, monkeypatch):
    view = view_of(tmp_path, deleted=10_000, strategies="node_mask", batch_sizes="1")
    view.run.click()
    through(view)
    (row,) = view.panel.rows().to_dict("records")
    view.run.click()
    through(view)
    assert view.panel.rows()["measured_at"].tolist() == [row["measured_at"]]  # read: it is kept as it was
    view.form.retry.value = True
    view.wait()
    assert "-p retry True" in view.line.value
    view.run.click()
    through(view)
    assert view.panel.rows()["measured_at"].tolist() != [row["measured_at"]]


def test_what_a_panel_says_of_itself_is_of_what_it_shows(front_end, tmp_path, monkeypatch):
    before = lab.PanelState.of(**{**SMALL, "batch_sizes": "1", "results": str(tmp_path)})
    tclab.sweep(before.points(), results=tmp_path)
    before.save()
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    panel = lab.Panel(**{**SMALL, "batch_sizes": "3"}, results=str(tmp_path))  # as the notebook's parameters say
    asyncio.run(panel.show())
    assert shown == [panel.view.box]
    assert set(panel.rows()["batch_size"]) == {1}  # what is on screen: the folder's last sweep
    assert panel.asked().points() == panel.state.points()
    panel.view.form.batch_sizes.value = "4"
    assert "-p batch_sizes 4" in panel.papermill()
    assert "batch_sizes='4'" in panel.python()
    panel.view.load.click()
    panel.view.wait()
    assert panel.asked().points() == before.points()
    assert "-p batch_sizes 1" in panel.papermill() == panel.view.line.value
    # All 4 points of 2 strategies: what was found is there too, without a cell
    assert "What was found" in panel.view.found.value
    assert [path.name for path in panel.export()] == ["report.html", "rows.csv"]
    assert read_rows(tmp_path / "rows.csv")["batch_size"].unique().tolist() == [1]


def test_nothing_is_exported_before_there_are_rows(tmp_path):
    panel = lab.Panel(**SMALL, results=str(tmp_path / "rows"))
    assert panel.export() == []
    assert not (tmp_path / "rows").exists()


def test_anybody_can_say_that_somebody_looks_on(tmp_path, monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    panel = lab.Panel(**SMALL, results=str(tmp_path))
    asyncio.run(panel.show(live=True))
    assert shown == [panel.view.box]
    assert panel.sweep is None


def test_buttons_and_words_agree_also_where_a_stop_came_too_late(front_end, tmp_path):
    view = view_of(tmp_path, strategies="node_mask", batch_sizes="1")
    seen = []

    def look(change):
        buttons = (view.run.disabled, view.stop.disabled, view.resume.disabled)
        seen.append((change["new"].partition(":")[0], buttons))

    view.status.observe(look, "value")
    view.run.click()
    sweep = view.panel.sweep
    sweep.join()
    sweep.stop()
    through(view)
    assert view.status.value.startswith("Through: 1 of 1 points")
    assert view.resume.disabled
    assert {buttons for words, buttons in seen if words == "Through"} == {(False, True, True)}
    assert {buttons for words, buttons in seen if words.startswith("0 of 1")} <= {(True, False, True)}


def test_a_list_shows_all_strategies_at_once(front_end, tmp_path):
    view = view_of(tmp_path)
    assert view.form.strategies.rows == len(view.form.strategies.options) == len(tclab.masking.names()) - 1


def test_a_throttle_serves_the_last_request_and_no_more_than_its_rate():
    seen, value = [], [0]
    ask = Throttle(lambda: seen.append(value[0]), 0.1)
    for number in range(200):
        value[0] = number
        ask()
        time.sleep(0.001)
    ask.wait()
    assert seen[-1] == 199
    assert 1 <= len(seen) < 100


def test_a_throttle_rests_after_each_call_however_long_that_took():
    begun, ended = [], []

    def call():
        begun.append(time.monotonic())
        time.sleep(0.05)
        ended.append(time.monotonic())

    ask = Throttle(call, 0.1)
    until = time.monotonic() + 0.6
    while time.monotonic() < until:
        ask()
        time.sleep(0.002)
    ask.wait()
    assert len(begun) > 1
    assert all(begin - end >= 0.1 for begin, end in zip(begun[1:], ended, strict=False))


DIFFERENCES = [name for name in tclab.masking.names() if issubclass(tclab.masking.get(name), Delta)]
EVERY = [name for name in tclab.masking.names() if name not in ("indices", *DIFFERENCES)]


@pytest.mark.parametrize("strategy", EVERY)
def test_bytes_are_said_before_anything_is_run(strategy):
    from tclab.sweeps.rig import rig

    point = tclab.Point(strategy=strategy, scale=0.06, batch_size=5, networks=4, workers=0, device="cpu").resolved()
    with rig(point, 5) as here:
        real = next(iter(here.batches())).batch.bytes
    assert expected_batch_bytes(point) == pytest.approx(real, rel=0.2)


@pytest.mark.parametrize("strategy", DIFFERENCES)
def test_bytes_that_only_running_it_tells_are_missing(strategy):
    assert expected_batch_bytes(tclab.Point(strategy=strategy, scale=0.1, device="cpu")) is None


def test_words_say_how_many_points_cannot_be():
    points = tclab.grid(models="dango", strategies="indices,node_mask", batch_sizes="1,2", scale=0.02)
    assert ahead(points).startswith("4 points · 2 of them cannot be: dango reads no masked graph")


def test_words_say_what_the_heaviest_point_holds_and_what_there_is():
    points = tclab.grid(
        models="hetero_cell", strategies="node_mask,edge_mask", batch_sizes="1,2", scale=0.02, gpus=0
    )
    said = weighed(points)
    need = tclab.fits(max((p for p in points if p.strategy == "edge_mask"), key=lambda p: p.batch_size))
    assert said.startswith(
        f"memory of the heaviest (edge_mask, batch 2): about host memory {bytes_text(need.host)} of "
    )
    assert weighed(tclab.grid(models="dango", strategies="node_mask", batch_sizes="1", scale=0.02)) == ""


def test_the_heaviest_is_by_memory_and_not_by_the_bytes_that_travel():
    # dense ships next to nothing, and holds a matrix of all nodes; delta's batch nobody can tell before it is made
    strategies = "edge_mask,dense,delta"
    points = tclab.grid(
        models="hetero_cell", strategies=strategies, batch_sizes="1,2", scale=0.05, networks=3, gpus=0
    )
    largest = {
        name: [p for p in points if p.strategy == name and p.batch_size == 2] for name in strategies.split(",")
    }
    holds = {name: max(tclab.fits(p).host for p in own) for name, own in largest.items()}
    heaviest = max(holds, key=holds.get)
    assert f"heaviest ({heaviest}, batch 2): about host memory {bytes_text(holds[heaviest])} of " in weighed(points)
    assert heaviest == "dense"


def test_every_strategy_that_will_not_fit_is_named_and_one_that_cannot_be_weighed_hides_no_other(monkeypatch):
    names = "node_mask,edge_mask,gpu_mask"
    points = tclab.grid(models="hetero_cell", strategies=names, batch_sizes="1,2", scale=0.02, networks=1, gpus=0)
    real, asked = tclab.fits, []

    def refusing(point):
        asked.append((point.strategy, point.batch_size))
        if point.strategy == "gpu_mask":
            raise RuntimeError("no such kernel")
        return real(point, memory_bytes=1000)

    monkeypatch.setattr(panel_words, "fits", refusing)
    said = weighed(points)
    assert asked == [("node_mask", 2), ("edge_mask", 2), ("gpu_mask", 2)]
    for name in ("node_mask", "edge_mask"):
        assert re.search(rf"· {name}, batch 2, needs [\d.]+ .B of host memory, and there are 1,000 B", said)
    assert said.endswith("gpu_mask, batch 2, is not known: no such kernel")
    assert weighed(points, lambda: True) == ""
    assert weighed(points, seconds=-1) == "3 more strategies were not weighed"
    assert len(asked) == 3


def test_points_are_weighed_one_request_at_a_time_and_the_last_is_said(monkeypatch):
    begun, go_on, said = threading.Event(), threading.Event(), []

    def slowly(points, stop, *, seconds):
        begun.set()
        go_on.wait(30)
        return "" if stop() else str(points)

    monkeypatch.setattr(weighing, "weighed", slowly)
    ask = Weighing(said.append, 0.01)
    ask.later(["first"])
    assert begun.wait(30)
    ask.later(["second"])  # a field is changed meanwhile
    go_on.set()
    until(lambda: said[-1] == "['second']")
    assert said == ["", "", "['second']"]
    go_on.clear(), begun.clear()
    ask.later(["third"])
    assert begun.wait(30)
    threading.Timer(0.2, go_on.set).start()
    ask.end(60)  # Run is pressed: it waits until the cores are free
    assert go_on.is_set()
    assert said[3:] == [""]


def test_what_a_panel_holds_is_weighed_again_at_a_sweeps_end_and_never_beside_it(front_end, tmp_path, monkeypatch):
    running = []
    monkeypatch.setattr(panel_view, "_WEIGHING_SECONDS", 0.05)
    monkeypatch.setattr(
        weighing,
        "weighed",
        lambda points, stop, seconds: running.append(under_way(tmp_path)) or f"{len(points)} weighed",
    )
    view = view_of(tmp_path, strategies="node_mask", batch_sizes="1")
    until(lambda: view.memory.value == "1 weighed")
    view.run.click()
    view.form.batch_sizes.value = "1,2"
    view.wait()
    if view.panel.sweep.running:
        assert view.memory.value == ""
    through(view)
    until(lambda: view.memory.value == "2 weighed")
    assert set(running) == {None}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (185, "3 min 5 s"), (7_800, "2 h 10 min")]
)
def test_durations_as_people_read_them(seconds, text):
    assert duration_text(seconds) == text


def test_the_table_is_short_however_many_points_there_are():
    rows = tclab.sweeps.rows.frame(
        tclab.sweeps.rows.table(
            {"stage": "step", "model": "hetero_cell", "strategy": "node_mask", "batch_size": b + 1, "networks": 9,
             "status": "oom"} for b in range(500)
        )
    )  # fmt: skip
    assert len(points_table(rows)) < 10_000
    assert "and 488 more" in points_table(rows)
    assert len(failures(rows)) == 1


def test_paths_are_beside_the_notebooks_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("TCLAB_RUNS", raising=False)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    assert project_path("runs/a") == tmp_path / "runs" / "a"
