"""The panel: its state is a sweep's, its rows are a sweep's, and it shows what goes wrong."""

import asyncio
import json
import re
import shlex
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime

import altair as alt
import pytest
from test_compare import rows, step

import tclab
from tclab import InputError, lab
from tclab._display import bytes_text
from tclab.lab import project_path
from tclab.lab.panel import _background_calls, _panel_text, _panel_view
from tclab.lab.panel._background_calls import BackgroundCalls, BackgroundEstimate
from tclab.lab.panel._live_sweep import running_sweep, sweep_seconds_text
from tclab.lab.panel._panel_model import PanelModel
from tclab.lab.panel._panel_state import PanelState
from tclab.lab.panel._panel_text import Part, memory_parts, points_text
from tclab.lab.panel._panel_view import PanelView
from tclab.masking._delta import Delta
from tclab.sweeps import close_workers
from tclab.sweeps.config._point_inputs import resolve
from tclab.sweeps.predict._batch_bytes import expected_batch_bytes
from tclab.sweeps.store._results import Results
from tclab.sweeps.store._row_files import read_rows
from tclab.sweeps.store._row_frame import without_time
from tclab.sweeps.store._rows import columns_of, not_measured, table

pytestmark = pytest.mark.clock

SMALL = {
    "scale": 0.02,
    "networks": 1,
    "steps": 1,
    "strategies": "edge_mask,node_mask",
    "batch_sizes": "1,2",
    "gpus": 0,
}


@pytest.fixture(autouse=True, scope="module")
def no_child_is_left():
    yield
    close_workers()


@pytest.fixture
def front_end(monkeypatch):
    def refused(*arguments, **options):
        raise AssertionError("an Output widget can hang papermill")

    monkeypatch.setenv("JPY_SESSION_NAME", "some.ipynb")
    monkeypatch.setattr("ipywidgets.Output.__init__", refused)


def view_of(folder, **parameters):
    view = PanelView(PanelModel(results=str(folder), **{**SMALL, **parameters}))
    view.wait()
    return view


def until(seen, seconds=120):
    end = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < end
        time.sleep(0.01)


def click(button, view):
    button.click()
    view.wait()


def through(view):
    view.wait()
    view.model.sweep.join()
    view.wait()


def said_of(*arguments, **options):
    return " · ".join(part.text for part in memory_parts(*arguments, **options))


# What it is set to


def parameters_of(root, notebook):
    cells = json.loads((root / "notebooks" / notebook).read_text())["cells"]
    cell = next(cell for cell in cells if "parameters" in cell["metadata"].get("tags", []))
    found = {}
    exec("".join(cell["source"]), {}, found)
    return found


def test_a_state_has_the_parameters_of_the_sweep_notebook(root):
    state = PanelState()
    names = {name: getattr(state, name) for name in state.__dataclass_fields__}
    # those that no cell names are in `more`: given to the call of the panel, of the grid or of the sweep
    assert set(parameters_of(root, "explore.ipynb")) - {"more"} <= set(names)
    of_the_cell = parameters_of(root, "sweep.ipynb")
    assert set(of_the_cell) - {"more"} <= set(names)
    behind = {name: value for name, value in names.items() if name not in of_the_cell}
    points, sweep = lab.check_parameters(tclab.grid, lab.LiveSweep, more=behind)
    assert set(points) | set(sweep) == set(behind)


STATES = [
    {},
    {"scale": 0.1234, "hidden": 32, "layers": 2, "num_deletions": 1, "dtype": "float64", "mode": "model", "gpus": 0},
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
    {"perturbations": "data_samples/cell/aao1729_data_s1.tsv", "gpus": 0},
]


@pytest.mark.parametrize("parameters", STATES, ids=str)
def test_its_line_of_papermill_and_its_python_are_the_same_points(parameters, root, monkeypatch):
    state = PanelState.of(**parameters)
    program, notebook, _, *pairs = shlex.split(state.papermill())
    assert (program, notebook) == ("papermill", "notebooks/sweep.ipynb")
    # as papermill reads them: `-p` makes numbers of what looks like one, `-r` leaves text
    from papermill.cli import _resolve_type

    given = {n: v if flag == "-r" else _resolve_type(v) for flag, n, v in zip(*[iter(pairs)] * 3, strict=True)}
    cells = json.loads((root / "notebooks" / "sweep.ipynb").read_text())["cells"]
    of_the_cell = parameters_of(root, "sweep.ipynb")
    names = of_the_cell | {n: v for n, v in given.items() if n in of_the_cell}
    names["more"] = {n: v for n, v in given.items() if n not in of_the_cell}
    for cell in cells:
        if cell["id"] in ("imports", "points"):
            with alt.renderers.enable(alt.renderers.active):
                exec("".join(cell["source"]).removesuffix("len(points)"), names)
    assert names["points"] == state.points()
    assert str(given["results"]) == state.results
    assert ((given["budget_seconds"] or None), given["retry"]) == (state.budget, state.retry)

    swept = {}
    code = state.python().replace("import tclab", "").replace("tclab.sweep", "swept")
    exec(code, {"tclab": tclab, "swept": lambda points, **more: swept.update(points=points, **more)})
    monkeypatch.chdir(root)  # paths are the project's
    assert [resolve(point) for point in swept.pop("points")] == [resolve(point) for point in state.points()]
    assert swept == {"results": state.results, **state.options()}


@pytest.mark.parametrize("parameters", STATES, ids=str)
def test_the_form_shows_a_state_and_gives_it_back(parameters, tmp_path):
    state = PanelState.of(**{**parameters, "results": str(tmp_path)})
    from tclab.lab.panel._panel_form import PanelForm

    assert PanelForm(state, 0).read().points() == state.points()
    assert PanelForm(state, 0).read().options() == state.options()


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"scale": -1}, "scale is -1, expected a number above 0"),
        ({"strategies": "nodemask"}, "did you mean 'node_mask'"),
        ({"batch_sizes": "1,none"}, "batch_sizes is 'none', expected a whole number"),
        ({"hidden": 1}, "hidden is 1, expected a whole number of at least 2"),
        ({"modes": "step"}, "unknown parameter 'modes'; did you mean 'mod"),
        ({"models": "hetero_cell,dango", "strategies": "node_mask"}, "model is hetero_cell, dango, expected one"),
        ({"budget_seconds": -3}, "budget_seconds is -3, expected a number from 0 up"),
        ({"compile": "perhaps"}, "compile is 'perhaps', expected True or False"),
        ({"retry": "yes"}, "retry is 'yes', expected True or False"),
        ({"graph": "nowhere"}, "expected 'synthetic' or a folder or file that exists"),
    ],
)
def test_what_is_out_of_range_is_said_at_once(parameters, words):
    with pytest.raises(InputError, match=words):
        lab.Panel(**{**SMALL, **parameters})


# Running


@pytest.mark.slow
def test_headless_it_runs_the_sweep_and_shows_one_picture(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    panel = lab.Panel(results=str(tmp_path), **SMALL)
    asyncio.run(panel.show())
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("4 points · ")
    assert [line[:5] for line in said[1:5]] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    assert [type(one).__name__ for one in shown] == ["LayerChart", "Sentences"]
    assert shown[1] == lab.findings(panel.rows())
    rows = panel.rows()
    assert (rows["status"] == "ok").all()
    # the same rows as a sweep's: it finds them all
    again = tclab.sweep(panel.state.points(), results=tmp_path)
    assert again["measured_at"].tolist() == rows["measured_at"].tolist()


@pytest.mark.slow
def test_a_persons_way_through_it(front_end, tmp_path):
    view = view_of(tmp_path / "rows")
    assert (view.run_button.disabled, view.stop_button.disabled, view.resume_button.disabled) == (False, True, True)
    assert "4 points · heaviest batch about" in view.points.value
    assert not (tmp_path / "rows").exists()  # looking makes no folder

    view.form.batch_sizes.value = "1,2,3"
    view.wait()
    assert "6 points" in view.points.value
    click(view.run_button, view)
    assert (view.run_button.disabled, view.stop_button.disabled) == (True, False)
    until(lambda: view.model.sweep.done >= 1)
    view.stop_button.click()
    through(view)
    done = view.model.sweep.done
    assert done < 6
    assert view.status.value == f"Stopped: {done} of 6 points · Resume goes on"
    assert "edge_mask" in view.table.value

    view.form.batch_sizes.value = "1"  # a mind that was changed: Resume is the stopped sweep's nevertheless
    view.wait()
    click(view.resume_button, view)
    through(view)
    assert view.model.sweep.done == 6
    assert view.status.value.startswith("Through: 6 of 6 points")
    assert view.resume_button.disabled
    assert len(Results(tmp_path / "rows").kept()) == 6

    # the folder is opened later, by another kernel
    later = view_of(tmp_path / "rows")
    assert later.status.value == "The last sweep here: 6 of 6 points."
    assert later.table.value == view.table.value
    assert len(later.model.rows()) > 0
    click(later.compare_button, later)
    assert "name another folder of results" in later.message.value
    later.other.value = str(tmp_path / "rows")
    click(later.compare_button, later)
    assert "1 ×" in later.comparison.value


def test_a_sweep_that_was_cut_off_is_there_and_goes_on(front_end, tmp_path):
    state = PanelState.of(results=str(tmp_path), **SMALL)
    tclab.sweep(state.points()[:1], results=tmp_path)
    state.save()  # as a kernel that was killed after its first point leaves it
    view = view_of(tmp_path, strategies="gpu_mask")
    assert view.status.value == "The last sweep here: 1 of 4 points. Resume goes on with it."
    assert not view.resume_button.disabled
    click(view.resume_button, view)
    through(view)
    assert view.form.strategies.value == ("edge_mask", "node_mask")
    assert len(Results(tmp_path).kept()) == 4


@pytest.mark.slow
def test_a_headless_sweeps_folder_is_shown_and_goes_on(front_end, tmp_path):
    state = PanelState.of(results=str(tmp_path), **SMALL)
    tclab.sweep(state.points()[:3], results=tmp_path)
    view = view_of(tmp_path, batch_sizes="8")
    assert view.status.value == "The last sweep here: 3 of 4 points. Resume goes on with it."
    tclab.sweep([tclab.Point(scale=0.02, networks=1, workers=0, steps=1)], results=tmp_path)
    other = view_of(tmp_path)
    assert other.status.value == "4 points are here, of settings that a panel has no field for."
    assert (other.resume_button.disabled, other.load_button.disabled) == (True, True)


def test_settings_that_cannot_be_here_are_said_and_hinder_nothing(front_end, tmp_path):
    state = PanelState.of(results=str(tmp_path), **SMALL)
    tclab.sweep(state.points()[:1], results=tmp_path)
    replace(state, strategies="of_another_kernel").save()
    view = view_of(tmp_path)
    assert view.status.value.startswith("1 point is here; the last sweep cannot go on here: unknown strategy")
    assert "edge_mask" in view.table.value
    assert (view.run_button.disabled, view.resume_button.disabled) == (False, True)
    assert view.message.value == ""


@pytest.mark.slow
def test_a_folder_that_is_opened_while_a_sweep_begins_leaves_it_alone(front_end, tmp_path):
    view = view_of(tmp_path)
    view.form.results.value = str(tmp_path / "other")
    view.run_button.click()  # before the other folder was read
    through(view)
    assert view.model.sweep.results == tmp_path / "other"
    assert view.status.value.startswith("Through: 4 of 4 points")


@pytest.mark.slow
def test_a_cell_run_again_finds_the_sweep_that_is_running_sweep(front_end, tmp_path):
    view = view_of(tmp_path, batch_sizes=",".join(map(str, range(1, 40))))  # it is not through by then
    click(view.run_button, view)
    again = view_of(tmp_path, strategies="gpu_mask")
    assert again.model.sweep is view.model.sweep is running_sweep(tmp_path)
    assert again.form.strategies.value == ("edge_mask", "node_mask")
    assert not again.stop_button.disabled
    again.stop_button.click()
    through(again)
    assert again.status.value.startswith("Stopped")
    assert running_sweep(tmp_path) is None


# What goes wrong


def marked(view):
    """Return the fields that are outlined, as the one that a message is about."""
    return [name for name, widget in vars(view.form).items() if "error" in str(getattr(widget, "layout", ""))]


@pytest.mark.parametrize(
    ("field", "value"),
    [("graph", "nowhere"), ("perturbations", "nowhere"), ("batch_sizes", "0"), ("networks", "tflin"),
     ("strategies", ()), ("results", "")],
)  # fmt: skip
def test_the_field_that_a_message_is_about_is_outlined(front_end, tmp_path, field, value):
    view = view_of(tmp_path)
    getattr(view.form, field).value = value
    view.wait()
    assert marked(view) == [field]


def test_bad_input_is_said_and_cannot_be_run(front_end, tmp_path):
    view = view_of(tmp_path)
    view.form.batch_sizes.value = "1,x"
    view.wait()
    assert "batch_sizes is &#x27;x&#x27;, expected a whole number" in view.message.value
    assert view.run_button.disabled
    assert marked(view) == ["batch_sizes"]
    view.form.batch_sizes.value = "1"
    view.wait()
    assert view.message.value == ""
    assert not view.run_button.disabled
    view.form.results.value = ""
    view.wait()
    assert "results is &#x27;&#x27;, expected a folder" in view.message.value
    assert view.run_button.disabled
    view.form.results.value = str(tmp_path)
    view.form.strategies.value = ()
    view.wait()
    assert view.run_button.disabled


def test_a_point_that_cannot_fit_is_red(front_end, tmp_path):
    view = view_of(tmp_path)
    need = tclab.fits(tclab.Point(scale=0.02, networks=1, steps=1))
    view._show_memory([Part("memory of the heaviest"), Part(f"edge_mask, {replace(need, host_limit=1).refusal}", True)])
    before, _, after = view.memory.value.partition(" · ")
    assert "color" not in before
    assert "color" in after


def test_two_kernels_do_not_sweep_into_one_folder_at_once(front_end, tmp_path):
    seen = []
    impossible = tclab.Point(model="dango", strategy="node_mask", scale=0.02)  # has a row at once
    tclab.sweep(impossible, results=tmp_path, progress=lambda _: seen.append(Results(tmp_path).sweeping()))
    assert seen[0].startswith("process ")
    assert Results(tmp_path).sweeping() is None
    with Results(tmp_path).swept():
        view = view_of(tmp_path)
        assert "Another kernel or cell sweeps here: process " in view.status.value
        click(view.run_button, view)
        assert "Another kernel or cell sweeps here: process " in view.message.value
        assert view.model.sweep is None
    click(view.run_button, view)
    assert view.message.value == ""
    through(view)


def test_every_strategy_and_mode_is_explained_where_the_mouse_is(front_end, tmp_path):
    form = view_of(tmp_path).form
    for name in tclab.masking.names():
        assert re.search(rf"^{name}: \w.{{20}}", form.strategies.tooltip, re.MULTILINE)
    assert form.strategies.description == ""  # with a label the browser gives the help to the label alone
    for name in form.mode.options:
        assert f"\n{name}: " in form.mode.tooltip


def test_a_folder_that_cannot_be_written_is_said(front_end, tmp_path):
    (tmp_path / "file").write_text("")
    view = view_of(tmp_path)
    view.form.results.value = str(tmp_path / "file" / "rows")  # at once, not at a click on Run
    view.wait()
    assert "file&#x27; is a file" in view.message.value
    assert view.run_button.disabled
    assert marked(view) == ["results"]
    view.form.results.value = str(tmp_path / "rows")
    view.wait()
    assert not view.run_button.disabled
    assert marked(view) == []
    model = PanelModel(**SMALL, results=str(tmp_path / "rows"))
    (tmp_path / "rows").write_text("")  # since the panel looked
    with pytest.raises(InputError, match="expected a folder that can be written"):
        model.start()


def test_what_fails_is_in_the_log_and_in_the_picture(front_end, tmp_path):
    view = view_of(tmp_path, num_deletions=10_000, strategies="node_mask", batch_sizes="1")
    click(view.run_button, view)
    through(view)
    assert "node_mask, batch 1): failed: " in view.failed.value
    assert "failed" in str(view.chart._chart.spec)


def test_a_model_offers_what_serves_it(front_end, tmp_path):
    view = view_of(tmp_path)
    view.form.model.value = "dango"
    view.wait()
    assert view.form.strategies.value == ("indices",)
    assert "node_mask" not in view.form.strategies.options
    assert view.form.layers.disabled
    assert not view.form.hidden.disabled
    view.form.model.value = "hetero_cell"  # and gets back what was chosen for it
    assert view.form.strategies.value == tuple(PanelState.of(**SMALL).strategies.split(","))


# Its parts


def test_failed_points_are_tried_again_where_that_is_asked_for(front_end, tmp_path, monkeypatch):
    view = view_of(tmp_path, num_deletions=10_000, strategies="node_mask", batch_sizes="1")
    click(view.run_button, view)
    through(view)
    (row,) = view.model.rows().to_dict("records")
    click(view.run_button, view)
    through(view)
    assert view.model.rows()["measured_at"].tolist() == [row["measured_at"]]  # read: it is kept as it was
    view.form.retry.value = True
    view.wait()
    assert "-p retry True" in view.line.value
    click(view.run_button, view)
    through(view)
    assert view.model.rows()["measured_at"].tolist() != [row["measured_at"]]


@pytest.mark.slow
def test_what_a_panel_says_of_itself_is_of_what_it_shows(front_end, tmp_path, monkeypatch):
    before = PanelState.of(**{**SMALL, "batch_sizes": "1", "results": str(tmp_path)})
    tclab.sweep(before.points(), results=tmp_path)
    before.save()
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    panel = lab.Panel(**{**SMALL, "batch_sizes": "3"}, results=str(tmp_path))  # as the notebook's parameters say
    asyncio.run(panel.show())
    assert shown == [panel.view.box]
    assert set(panel.rows()["batch_size"]) == {1}  # what is on screen: the folder's last sweep
    assert panel.settings().points() == panel.state.points()
    panel.view.form.batch_sizes.value = "4"
    assert "-p batch_sizes 4" in panel.papermill()
    assert "batch_sizes='4'" in panel.python()
    panel.view.load_button.click()
    panel.view.wait()
    assert panel.settings().points() == before.points()
    assert "-p batch_sizes 1" in panel.papermill() == panel.view.line.value
    # All 4 points of 2 strategies: what was found is there too, without a cell
    assert "What was found" in panel.view.findings.value
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
        buttons = (view.run_button.disabled, view.stop_button.disabled, view.resume_button.disabled)
        seen.append((change["new"].partition(":")[0], buttons))

    view.status.observe(look, "value")
    click(view.run_button, view)
    sweep = view.model.sweep
    sweep.join()
    sweep.stop()
    through(view)
    assert view.status.value.startswith("Through: 1 of 1 points")
    assert view.resume_button.disabled
    assert {buttons for words, buttons in seen if words == "Through"} == {(False, True, True)}
    assert {buttons for words, buttons in seen if words.startswith("0 of 1")} <= {(True, False, True)}


def test_a_list_shows_all_strategies_at_once(front_end, tmp_path):
    view = view_of(tmp_path)
    assert view.form.strategies.rows == len(view.form.strategies.options) == len(tclab.masking.names()) - 1


def test_background_calls_wait_for_what_was_requested_and_for_nothing_that_others_request_meanwhile():
    calls, made, over = BackgroundCalls(), [], threading.Event()

    def progress():  # as of a sweep, whose thread requests the next drawing while one is made
        made.append("progress")
        other = threading.Thread(target=lambda: over.is_set() or calls.request(progress))
        other.start()
        other.join()

    calls.request(progress)
    calls.request(lambda: (made.append("asked"), calls.request(lambda: made.append("what it asks"))))
    assert calls.wait(10)
    assert {"asked", "what it asks"} <= set(made)
    over.set()


def test_background_calls_serve_the_last_request_and_no_more_than_their_rate():
    seen, value, calls = [], [0], BackgroundCalls()

    def look():
        seen.append(value[0])

    for number in range(200):
        value[0] = number
        calls.request(look, rest_seconds=0.1)
        time.sleep(0.001)
    assert calls.wait(30)
    assert seen[-1] == 199
    assert 1 <= len(seen) < 100


def test_a_background_call_rests_after_its_end_however_long_it_took():
    begun, ended, calls = [], [], BackgroundCalls()

    def call():
        begun.append(time.monotonic())
        time.sleep(0.05)
        ended.append(time.monotonic())

    end = time.monotonic() + 0.6
    while time.monotonic() < end:
        calls.request(call, rest_seconds=0.1)
        time.sleep(0.002)
    calls.wait()
    assert len(begun) > 1
    assert all(begin - end >= 0.1 for begin, end in zip(begun[1:], ended, strict=False))


def test_background_calls_are_made_one_at_a_time_and_later_ones_are_not_waited_for():
    made, calls, busy = [], BackgroundCalls(), threading.Lock()

    def call_named(name):
        def call():
            assert busy.acquire(blocking=False)
            time.sleep(0.02)
            made.append(name)
            busy.release()

        return call

    first, second, later = map(call_named, ("first", "second", "later"))
    calls.request(later, after_seconds=0.5)
    calls.request(first)
    calls.request(second)
    assert calls.wait(30)
    assert made == ["first", "second"]
    until(lambda: made == ["first", "second", "later"])


# what travels with these depends on how many nodes the deleted ones touch
BY_REACH = ["khop_1", *(name for name in tclab.masking.names() if issubclass(tclab.masking.get(name), Delta))]
EVERY = [name for name in tclab.masking.names() if name not in ("indices", *BY_REACH)]


@pytest.mark.parametrize("strategy", EVERY)
def test_bytes_are_said_before_anything_is_run(strategy):
    from tclab.sweeps.execution._setup import setup

    point = resolve(tclab.Point(strategy=strategy, scale=0.06, batch_size=5, networks=4, workers=0, device="cpu"))
    with setup(point, 5) as here:
        real = next(iter(here.batches())).batch.bytes
    assert expected_batch_bytes(point) == pytest.approx(real, rel=0.2)


@pytest.mark.parametrize("strategy", BY_REACH)
def test_bytes_that_only_running_it_tells_are_missing(strategy):
    assert expected_batch_bytes(tclab.Point(strategy=strategy, scale=0.1, device="cpu")) is None


def test_words_say_how_many_points_cannot_be():
    points = [
        tclab.Point(model="dango", strategy=name, batch_size=size, scale=0.02)
        for name in ("indices", "node_mask")
        for size in (1, 2)
    ]
    assert points_text(points).startswith("4 points · 2 of them cannot run: dango reads no masked graph")


@pytest.mark.slow
def test_words_say_what_the_heaviest_point_holds_and_what_there_is():
    points = tclab.grid(models="hetero_cell", strategies="node_mask,edge_mask", batch_sizes="1,2", scale=0.02, gpus=0)
    said = said_of(points)
    need = tclab.fits(max((p for p in points if p.strategy == "edge_mask"), key=lambda p: p.batch_size))
    assert said.startswith(
        f"memory of the heaviest (edge_mask, batch 2): about host memory {bytes_text(need.host)} of "
    )
    assert said_of(tclab.grid(models="dango", strategies="node_mask", batch_sizes="1", scale=0.02)) == ""


@pytest.mark.slow
def test_the_heaviest_is_by_memory_and_not_by_the_bytes_that_travel():
    # dense ships next to nothing, and holds a matrix of all nodes; delta's batch nobody can tell before it is made
    strategies = "edge_mask,dense,delta"
    points = tclab.grid(models="hetero_cell", strategies=strategies, batch_sizes="1,2", scale=0.05, networks=3, gpus=0)
    largest = {name: [p for p in points if p.strategy == name and p.batch_size == 2] for name in strategies.split(",")}
    holds = {name: max(tclab.fits(p).host for p in own) for name, own in largest.items()}
    heaviest = max(holds, key=holds.get)
    assert f"heaviest ({heaviest}, batch 2): about host memory {bytes_text(holds[heaviest])} of " in said_of(points)
    assert heaviest == "dense"


@pytest.mark.slow
def test_every_strategy_that_will_not_fit_is_named_and_one_that_cannot_be_estimated_hides_no_other(monkeypatch):
    names = "node_mask,edge_mask,gpu_mask"
    points = tclab.grid(models="hetero_cell", strategies=names, batch_sizes="1,2", scale=0.02, networks=1,
                        gpus=0, seed=8)  # fmt: skip
    real, asked = tclab.fits, []

    def refusing(point):
        if point not in points:  # a panel of an earlier test estimates yet
            return real(point)
        asked.append((point.strategy, point.batch_size))
        if point.strategy == "gpu_mask":
            raise RuntimeError("no such kernel")
        return real(point, memory_bytes=1000)

    monkeypatch.setattr(_panel_text, "fits", refusing)
    said = said_of(points)
    assert asked == [("node_mask", 2), ("edge_mask", 2), ("gpu_mask", 2)]
    for name in ("node_mask", "edge_mask"):
        assert re.search(rf"· {name}, batch 2, needs [\d.]+ .B of host memory, and there are 1,000 B", said)
    assert said.endswith("gpu_mask, batch 2, is not known: no such kernel")
    assert said_of(points, lambda: True) == ""
    assert said_of(points, seconds=-1) == "3 more strategies were not estimated"
    assert len(asked) == 3


def test_memory_is_estimated_for_one_request_at_a_time_and_shown_for_the_last(monkeypatch):
    begun, go_on, shown = threading.Event(), threading.Event(), []

    def slowly(points, stop, *, seconds):
        begun.set()
        go_on.wait(30)
        return [] if stop() else [Part(str(points))]

    monkeypatch.setattr(_background_calls, "memory_parts", slowly)
    ahead = BackgroundEstimate(shown.append, 0.01)
    ahead.request(["first"], str)
    assert begun.wait(30)
    ahead.request(["second"], lambda: "about 3 s")  # a field is changed meanwhile
    go_on.set()
    until(lambda: shown[-1] == [Part("about 3 s"), Part("['second']")])
    assert [Part("['first']")] not in [parts[1:] for parts in shown]
    go_on.clear(), begun.clear()
    ahead.request(["third"], str)
    assert begun.wait(30)
    threading.Timer(0.2, go_on.set).start()
    ahead.finish(60)  # Run is pressed: it waits until the cores are free
    assert go_on.is_set()
    assert not any(Part("['third']") in parts for parts in shown)


def test_memory_is_estimated_again_at_a_sweeps_end_and_never_while_it_runs(front_end, tmp_path, monkeypatch):
    running, folder = [], tmp_path / "one" / "rows"  # nothing was measured beside it
    monkeypatch.setattr(_panel_view, "_MEMORY_SECONDS", 0.05)

    def memory_parts(points, stop, seconds):
        if points[0].seed == 7:  # the panels of earlier tests estimate as well
            running.append(running_sweep(folder))
        return [Part(f"{len(points)} estimated")]

    monkeypatch.setattr(_background_calls, "memory_parts", memory_parts)
    view = view_of(folder, strategies="node_mask", batch_sizes="1", seed=7)
    until(lambda: view.memory.value == "no estimate: nothing was measured into this folder yet · 1 estimated")
    click(view.run_button, view)
    view.form.batch_sizes.value = "1,2"
    view.wait()
    if view.model.sweep.running:
        assert view.memory.value == ""
    through(view)
    until(lambda: view.memory.value.startswith("about ") and view.memory.value.endswith(" · 2 estimated"))
    assert " for 1 point, by the mean of those kept here · " in view.memory.value
    assert set(running) == {None}


def test_before_a_sweep_it_says_about_how_long_it_takes_by_the_points_that_are_kept(tmp_path):
    results = tmp_path / "one"
    point = tclab.Point(scale=0.02, networks=1, steps=2, strategy="node_mask", device="cpu")
    assert sweep_seconds_text([point], results) == "no estimate: nothing was measured into this folder yet"
    begin, folder = "2026-11-22T10:00:00+00:00", Results(results)
    for size in (1, 2):
        done = resolve(replace(point, batch_size=size))
        folder.write(done, table([{**columns_of(done), "stage": "step", "status": "ok", "measured_at": begin}]))
    lost = resolve(replace(point, batch_size=3))
    folder.write(lost, not_measured(lost, "failed: it crashed"))  # which says nothing about time
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Results, "seconds_a_point", lambda self: 4.0)
        kept = [replace(point, batch_size=size) for size in (1, 2, 3)]
        assert sweep_seconds_text(kept, results) == "nothing is left to measure: all points are kept, or cannot run"
        assert sweep_seconds_text(kept, results, retry=True).startswith("about 4 s for 1 point, by the mean of those")
        more = [*kept, replace(point, batch_size=4), replace(point, batch_size=5)]
        assert sweep_seconds_text(more, results).startswith("about 8 s for 2 points, ")
        assert sweep_seconds_text(more, results, budget_seconds=5).endswith("; the budget of 5 s ends it before")
    since = (datetime.now(UTC) - datetime.fromisoformat(begin)).total_seconds()
    assert folder.seconds_a_point() == pytest.approx(since, abs=60)  # of those that have a begin, not of the failed one


def test_what_has_no_time_is_a_line_however_many_points_there_are():
    rows = tclab.sweeps.store._rows.frame(
        tclab.sweeps.store._rows.table(
            {"stage": "step", "model": "hetero_cell", "strategy": "node_mask", "batch_size": b + 1, "networks": 9,
             "status": "oom"} for b in range(500)
        )
    )  # fmt: skip
    assert len(rows._repr_html_()) < 10_000  # the panel sends it to the browser after each point
    assert without_time(rows) == ["500 points (hetero_cell node_mask, batch 1 to 500): oom."]
    assert without_time(rows)[0] in rows._repr_html_()


def test_paths_are_beside_the_notebooks_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("TCLAB_RUNS", raising=False)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    assert project_path("runs/a") == tmp_path / "runs" / "a"


def test_a_chart_is_of_the_batch_size_that_is_chosen(front_end, tmp_path, monkeypatch):
    view = view_of(tmp_path)
    made = rows(*(step(name, batch_size=size) for name in ("edge_mask", "node_mask") for size in (1, 4)))
    monkeypatch.setattr(view.model, "rows", lambda: made)
    assert view.batch.options == (view.batch.value,)  # nothing to choose before there are rows
    view._draw_soon()
    view.wait()
    usual, *sizes = view.batch.options
    assert sizes == [1, 4]
    assert "batch 4," in str(view.chart._chart.spec["title"])
    view.batch.value = 1
    view.wait()
    assert "batch 1," in str(view.chart._chart.spec["title"])
    made = made[made["batch_size"] == 4]  # another folder
    view._draw_soon()
    view.wait()
    assert (view.batch.value, view.batch.options) == (usual, (usual, 4))
    assert "batch 4," in str(view.chart._chart.spec["title"])
