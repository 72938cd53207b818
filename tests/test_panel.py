"""The panel: it shows the sweep that its fields describe, runs what is missing of it, and says what is wrong where."""

import asyncio
import json
import re
import shlex
import time
from dataclasses import replace
from types import SimpleNamespace

import altair as alt
import pytest
from test_compare import rows, step
from test_notebooks import FOLDER, defaults

import tclab
from tclab import InputError, Point, lab
from tclab.lab import _notebook as front_end
from tclab.lab._panel import PanelView
from tclab.sweeps._point_inputs import cell_graph_of, resolve
from tclab.sweeps._rows import Results, columns_of, table
from tclab.timing._verdict import sentence_of

SMALL = {"scale": 0.02, "networks": 1, "steps": 1, "strategies": "edge_mask,node_mask", "batch_sizes": "1,2", "gpus": 0}


def shown(folder, **parameters):
    """Return the view of a panel that a cell shows."""
    panel = lab.Panel(**{**SMALL, **parameters}, results=str(folder))
    panel.take_over()
    return PanelView(panel)


def drawn(view):
    """Wait until nothing is left to draw; after a sweep, until it is over."""
    end = time.monotonic() + 600
    while view.panel.running or view._draw_waits:
        assert time.monotonic() < end
        time.sleep(0.01)
    with view._drawing:
        return view


def view_of(folder, **parameters):
    return drawn(shown(folder, **parameters))


def set_to(view, name, value):
    view.fields[name].widget.value = value
    return drawn(view)


def marked(view):
    """Return field → what is said to be wrong with it."""
    return {
        name: field._problem.value for name, field in view.fields.items() if "error" in field.widget.layout.border_top
    }


def title_of(view):
    (output,) = view.chart.outputs
    (spec,) = output["data"].values()
    return str(spec["title"])


# Its parameters


PARAMETERS = [
    {},
    {"scale": 0.1234, "hidden": 32, "layers": 2, "perturbations": 1, "dtype": "float64", "mode": "model", "gpus": 0},
    {"networks": "1,3,9", "batch_sizes": [8, 9], "strategies": "subgraph", "seed": 3, "budget_seconds": 2.5, "gpus": 2},
    {"networks": "physical,regulatory", "results": "2024"},
    {"compile": True, "retry": True, "gpus": 0, "perturbations": "data_samples/cell/aao1729_data_s1.tsv"},
    {"workers": "0,2", "mode": "step,data", "store": "memory,json", "repeats": 2, "hang_seconds": "60", "gpus": 0},
    {"imports": "tests/own_strategies.py", "strategies": "counts,node_mask", "perturbations": "1, 3", "gpus": 0},
]


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_form_papermill_and_python_are_the_same_points(parameters, root, monkeypatch):
    monkeypatch.chdir(root)  # paths are the project's
    panel = lab.Panel(**parameters)
    points, options = panel.points(), panel._options()
    view = PanelView(panel)
    assert {name: field.value for name, field in view.fields.items()} == panel.parameters

    from papermill.cli import _resolve_type  # `-p` makes numbers of what looks like one, `-r` leaves text

    program, notebook, _, *pairs = shlex.split(panel.papermill())
    assert (program, notebook) == ("papermill", "notebooks/sweep.ipynb")
    given = {n: v if flag == "-r" else _resolve_type(v) for flag, n, v in zip(*[iter(pairs)] * 3, strict=True)}
    cells = json.loads((FOLDER / "sweep.ipynb").read_text())["cells"]
    of_the_cell = defaults(cells)
    assert set(of_the_cell) - {"more", "race_seconds"} <= set(given)
    names = of_the_cell | {n: v for n, v in given.items() if n in of_the_cell}
    names["more"] = {n: v for n, v in given.items() if n not in of_the_cell}
    first = [cell for cell in cells if cell["cell_type"] == "code"][:3]
    assert [cell["id"] for cell in first] == ["parameters", "imports", "points"]  # of a bad value nothing is run
    for cell in first[1:]:
        with alt.renderers.enable(alt.renderers.active):
            exec("".join(cell["source"]), names)
    assert {resolve(point) for point in names["points"]} == {resolve(point) for point in points}
    assert given["results"] == panel.parameters["results"]
    named = {name: given[name] for name in options}
    assert {**named, "budget_seconds": named["budget_seconds"] or None} == options
    assert ("import_file" in panel.python()) == ("imports" in parameters)

    swept = {}
    code = panel.python().replace("import tclab", "").replace("tclab.sweep", "swept")
    exec(code, {"tclab": tclab, "swept": lambda points, **more: swept.update(points=points, **more)})
    assert {resolve(point) for point in swept.pop("points")} == {resolve(point) for point in points}
    assert swept == {"results": panel.parameters["results"], **options}


WRONG = [  # parameter, value, the error
    ("scale", "-1", "scale is -1, expected a number above 0"),
    ("strategies", "nodemask", "did you mean 'node_mask'"),
    ("batch_sizes", "1,x", "batch_sizes is 'x', expected a whole number"),
    ("budget_seconds", "-3", "budget_seconds is -3, expected a number from 0 up"),
    ("compile", "perhaps", "compile is 'perhaps', expected True or False"),
    ("graph", "nowhere", "nowhere', expected 'synthetic' or a folder or file that exists"),
    ("results", "", "results is '', expected a folder"),
    ("gpus", "4", "4 ranks need 4 GPUs, and this machine has 3 GPUs"),
    ("modes", "step", "unknown parameter 'modes'; did you mean 'mod"),
]


@pytest.mark.parametrize(("name", "value", "words"), WRONG)
def test_a_wrong_value_is_refused_and_its_field_is_framed_says_why_and_cannot_be_run(
    tmp_path, name, value, words, monkeypatch
):
    monkeypatch.setattr("tclab.sweeps._point.gpu_count", lambda: 3)
    with pytest.raises(InputError, match=words):
        lab.Panel(**{**SMALL, name: value})
    if name in ("compile", "modes"):  # no value of their fields is wrong
        return
    view = view_of(tmp_path)
    before = view.fields[name].widget.value
    if name == "strategies":
        value, words = (), "strategies is '', expected one value or several"
    set_to(view, name, value)
    assert list(marked(view)) == [name]
    assert words in marked(view)[name].replace("&#x27;", "'")
    assert view.run_button.disabled
    assert (name == "budget_seconds") == (view._more.selected_index == 0)
    set_to(view, name, before)
    assert marked(view) == {}
    assert not view.run_button.disabled


def test_a_model_offers_the_strategies_that_serve_it_each_explained(tmp_path):
    view = view_of(tmp_path)
    strategies = view.fields["strategies"]
    for name in tclab.masking.names():
        assert f"\n{name}: " in strategies.widget.tooltip
    set_to(view, "models", ("dango",))
    assert strategies.value == "indices"
    assert "node_mask" not in strategies.widget.options
    set_to(view, "models", ("hetero_cell",))
    assert {"node_mask", "delta", "edge_mask", "subgraph"} == {*strategies.widget.options[:4]}  # above the fold
    assert "indices" not in strategies.widget.options


# Parameters that papermill gave a notebook


NAMED = 'graph: str = "synthetic"\nbatch_sizes = "auto"  # 1,2,4\nsteps = 8'


@pytest.fixture
def ran(monkeypatch):
    """Let a kernel have run the cells of a notebook, and what papermill put behind its parameters."""

    def run(injected="", **values):
        cells = ["", NAMED, *([f"# Parameters\n{injected}"] if injected else []), "import altair as alt"]
        shell = SimpleNamespace(user_ns={"In": cells, **values})
        monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda: shell)

    return run


def test_parameters_that_no_cell_names_go_to_the_function_that_takes_them(ran):
    ran('batch_sizes = "1,2"\ngraph = "synthetic"\n')
    assert lab.check_parameters() == []
    ran('steps = 4\nmode = "data"\nretry = True\nslurm = "time:5"\n', mode="data", retry=True, slurm="time:5")
    own = str(FOLDER.parent / "tests" / "own_strategies.py")
    points, sweep = lab.check_parameters(tclab.grid, lab.LiveSweep, more={"store": "lmdb", "imports": own})
    assert "crashes" in tclab.masking.names()
    assert points == {"mode": "data", "store": "lmdb"}
    assert sweep == {"retry": True, "slurm": "time:5"}


def test_a_parameter_that_there_is_not_is_refused_with_the_nearest(ran):
    for injected, functions, more, words in (
        ('batchsizes = "1,2"\n', (), {}, "unknown parameter 'batchsizes'; did you mean 'batch_sizes'"),
        ("", (tclab.grid,), {"mod": "data"}, "unknown parameter 'mod'; did you mean 'mode'"),
        ("retri = True\n", (tclab.grid, lab.LiveSweep), {}, "unknown parameter 'retri'; did you mean 'retry'"),
    ):
        ran(injected)
        with pytest.raises(InputError, match=words):
            lab.check_parameters(*functions, more=more)
    ran("output = 1\n")
    with pytest.raises(InputError) as refused:
        lab.check_parameters(tclab.grid, lab.LiveSweep)
    known = str(refused.value).partition("known: ")[2].split(", ")
    assert "imports" in known
    assert sorted(set(known)) == known  # each is named once, although a cell and a function have it


# Running


def test_a_folder_is_opened_with_its_own_settings(tmp_path, root):
    """Those of the panel that measured into it, or else of its rows, by a cell that names the folder alone."""

    def opened(**parameters):
        panel = lab.Panel(**parameters, results=str(tmp_path))
        panel.take_over()
        return panel.parameters

    results = Results(tmp_path)
    every = tclab.grid(
        models="dango", strategies="indices", batch_sizes="2,8", networks=4, scale=0.03, gpus=0, hidden=8
    )
    for point in every:
        row = {**columns_of(point), "network_names": ",".join(cell_graph_of(point).networks), "stage": "step"}
        results.write(table([row]), Results.name(resolve(point)))
    found = opened()
    wanted = {"models": "dango", "batch_sizes": "2,8", "networks": "4", "scale": "0.03", "hidden": "8", "gpus": "0"}
    assert {name: found[name] for name in wanted} == wanted
    assert opened(scale=0.5)["batch_sizes"] == "1,2,4"  # a cell that sets something else means it
    saved = {"given": {"scale": "0.07"}, "parameters": {"scale": "0.07", "strategies": "dense", "steps": "3"}}
    (tmp_path / "panel.json").write_text(json.dumps(saved))
    assert (opened()["strategies"], opened()["steps"]) == ("dense", "3")


@pytest.mark.parametrize("text", ["{", '{"given": %s, "parameters": {"scale": "x"}}'])
def test_settings_that_are_damaged_or_cannot_be_here_hinder_nothing(tmp_path, text):
    given = lab.Panel(**SMALL, results=str(tmp_path))._given
    (tmp_path / "panel.json").write_text(text.replace("%s", json.dumps(given)))
    assert view_of(tmp_path).fields["scale"].value == "0.02"


def test_a_sweep_is_taken_over_and_a_folder_in_which_another_runs_or_nobody_can_write_is_said(tmp_path):
    view = view_of(tmp_path, strategies="node_mask", batch_sizes="1")
    with Results(tmp_path).swept():
        view.run_button.click()
        assert "sweeps: wait for its end, or name another folder" in marked(view)["results"]
        assert view.panel.sweep is None
    set_to(view, "steps", "2")
    assert (view.run_button.disabled, view.stop_button.disabled) == (False, True)
    view.run_button.click()
    assert (view.run_button.disabled, view.stop_button.disabled) == (True, False)
    assert view.fields["scale"].widget.disabled  # fields, status and chart are of one sweep
    again = shown(tmp_path, strategies="node_mask", batch_sizes="1")  # the cell was run again: the sweep goes on in it
    assert again.panel.sweep is view.panel.sweep
    drawn(again)
    assert marked(again) == {}
    assert again.status.value.startswith("1 of 1 setting in ")
    later = view_of(tmp_path, strategies="node_mask", batch_sizes="1")  # another kernel: the last sweep's fields
    assert (later.fields["steps"].value, later.status.value) == ("2", "1 of 1 setting measured")
    assert later.table.value == again.table.value
    assert len(view_of(tmp_path, batch_sizes="1,2,3").panel.points()) == 6  # the cell was changed
    (tmp_path / "file").write_text("")
    view = view_of(tmp_path / "file" / "rows")
    view.run_button.click()
    assert "which cannot be written" in marked(view)["results"]


def view_of_rows(folder, monkeypatch, made, *races):
    """Return the view of a panel that shows some rows, whose changes are raced by these functions."""
    found = tclab.advise(made)
    changes = [replace(one, race=race) for one, race in zip((*found.suggestions, *found.unsure), races, strict=True)]
    monkeypatch.setattr("tclab.lab._panel.advise", lambda _: replace(found, suggestions=tuple(changes), unsure=()))
    view = view_of(folder)
    assert view.again_button.disabled
    monkeypatch.setattr(view.panel, "measured", lambda: made)
    view.choice.value = view.choice.options[1]
    return drawn(view)


def raced(view):
    view.race_button.click()
    while view._racing:
        time.sleep(0.01)
    return drawn(view)


def test_what_may_pay_is_raced_by_a_click_for_as_long_as_decides_and_what_a_race_said_stays(tmp_path, monkeypatch):
    """A slow edge_mask beside node_mask: its race is undecided and says what it needs, then decides."""
    made = rows(step("edge_mask", 0.9, seed=0), step("node_mask", 0.1, seed=1))
    pair, budgets = replace(tclab.compare(made, made).pairs[0], reason="", needs_seconds=140.0), []

    def race(budget_seconds, clock):
        budgets.append(budget_seconds)
        clock()
        return pair if len(budgets) == 1 else replace(pair, verdict="FASTER", needs_seconds=None)

    view = view_of_rows(tmp_path, monkeypatch, made, race)
    assert view.offer.value == "1 change may pay: race it, about 0:01:45"  # a hundred of the slower's steps
    assert "<b>In one run each, node_mask had the highest throughput, 40 samples/s" in view.answer.value
    raced(view)
    assert view.offer.value.endswith("<br>1 change may pay: race it again, about 0:02:35")
    assert raced(view).offer.value == f"node_mask instead of edge_mask: {sentence_of(race(9, int)).partition(': ')[2]}"
    assert budgets[:2] == [pytest.approx(90.0, rel=0.01), 140.0]
    assert view.race_button.disabled
    said, before = view.offer.value, view.fields["scale"].widget.value
    set_to(view, "scale", "-1")
    assert "tclab-stale" in view._results._dom_classes
    monkeypatch.setattr(view.panel, "measured", lambda: made.head(0))
    set_to(view, "scale", "0.5")
    assert view.offer.value == ""
    monkeypatch.setattr(view.panel, "measured", lambda: made)
    assert set_to(view, "scale", before).offer.value == said
    assert "tclab-stale" not in view._results._dom_classes
    started = []
    monkeypatch.setattr(view.panel, "start", lambda listener: started.append(view.panel.parameters["repeats"]))
    view.again_button.click()
    assert started == ["2"]
    drawn(view)
    assert view.bar.max == 2 * len(view.panel.points())  # runs, not points
    assert view.status.value.startswith(f"0 of {view.bar.max} runs measured · they take roughly ")


def test_stop_ends_a_race_and_keeps_what_was_decided_and_an_error_costs_only_its_own(tmp_path, monkeypatch):
    names = ("node_mask", "delta", "dense", "gpu_mask", "edge_mask")
    made = rows(*(step(name, 0.1 + 0.2 * i, seed=i) for i, name in enumerate(names)))
    pair, under_way = replace(tclab.compare(made, made).pairs[0], verdict="FASTER", needs_seconds=None), []

    def fails(**_):
        raise InputError("a process died")

    def endless(budget_seconds, clock):  # as a race ends by Ctrl-C
        under_way.append(view.stop_button.disabled or view.fields["scale"].widget.disabled is False)
        view.stop_button.click()
        with pytest.raises(KeyboardInterrupt):
            clock()
        return replace(pair, verdict="UNDECIDED", needs_seconds=80.0, kept=3)

    view = view_of_rows(tmp_path, monkeypatch, made, lambda **_: pair, fails, endless, endless)
    raced(view)
    assert under_way == [False]  # Stop could be pressed, no field changed, and no other race began
    assert "a process died" in view.message.value
    assert view.offer.value.startswith("node_mask instead of edge_mask: FASTER")
    assert view.offer.value.count(": UNDECIDED, ") == 1, view.offer.value
    assert "<br>3 changes may pay: race them again, about" in view.offer.value
    assert not view.race_button.disabled
    assert view.stop_button.disabled


def test_the_panel_says_which_cells_to_run_again_until_they_are(tmp_path, monkeypatch):
    view, before, after = view_of(tmp_path), rows(step()), rows(step(measured_at="2026-01-02T00:00:00+00:00"))
    monkeypatch.setattr(view.panel, "measured", lambda: before)
    assert set_to(view, "steps", "2").below.value == ""  # no cell has asked for rows
    view.panel.rows()
    monkeypatch.setattr(view.panel, "measured", lambda: after)
    words = "The cells below show other rows: run them again, from the one with panel.rows() on."
    assert set_to(view, "steps", "3").below.value == words
    assert "rows = panel.rows()" in (FOLDER / "explore.ipynb").read_text()
    view.panel.rows()
    assert view.below.value == ""


def test_a_chart_is_chosen_and_an_error_of_drawing_is_shown(tmp_path, monkeypatch):
    view = view_of(tmp_path)
    assert "Nothing to show" in title_of(view)
    made = rows(*(step(name, batch_size=size) for name in ("edge_mask", "node_mask") for size in (1, 4)))
    monkeypatch.setattr(view.panel, "measured", lambda: made)
    view.choice.value = view.choice.options[1]
    by_size = title_of(drawn(view))
    view.choice.value = view.choice.options[0]
    assert title_of(drawn(view)) != by_size
    monkeypatch.setattr(view.panel, "measured", lambda: 1 / 0)
    view.choice.value = view.choice.options[1]
    assert "ZeroDivisionError" in drawn(view).message.value


# ---- the sweep beside the notebook: its lines, its stop, its errors


POINT = Point(scale=0.02, batch_size=1, networks=2, steps=1, warmup=0, device="cpu")


def points(number):
    return [replace(POINT, batch_size=b + 1) for b in range(number)]


def test_without_a_front_end_there_is_no_widget_and_a_line_a_point(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    sweep = lab.LiveSweep(points(2), results=tmp_path)

    async def cell():
        return await sweep.start()

    rows = asyncio.run(cell())
    assert (rows["status"] == "ok").all()
    lines = capsys.readouterr().out.splitlines()
    before = r"0 of 2 settings measured · they take roughly 0:00:\d\d · at most about 6\d\d MB of memory \(.* free\)"
    assert re.fullmatch(before, lines[0])
    assert [line[:5] for line in lines[1:]] == ["[1/2]", "[2/2]", "2 of "]
    assert len(sweep.rows()) == len(rows)
    dango = Point(model="dango", strategy="node_mask", scale=0.02)
    words = lab.LiveSweep([*points(3), dango], results=tmp_path).status()
    foretold = r"2 of 4 settings measured · the others take about 0:\d\d:\d\d · at most .* · "
    assert re.fullmatch(foretold + r"1 cannot run \(dango reads no masked graph\)", words)


def test_vs_code_is_a_front_end_anybody_can_say_so_and_what_a_cell_starts_has_none(monkeypatch, tmp_path):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    asyncio.run(lab.Panel(scale=0.02, gpus=0, results=str(tmp_path)).show(live=True))
    assert [type(one).__name__ for one in shown] == ["VBox"]
    monkeypatch.setenv("JPY_SESSION_NAME", "explore.ipynb")  # of JupyterLab's server
    for of_parent, found in (("explore.ipynb", False), (None, True)):  # papermill inherits it from a cell
        monkeypatch.setattr(front_end, "_of_parent", lambda name, value=of_parent: value)
        assert front_end.has_front_end() is found
    monkeypatch.delenv("JPY_SESSION_NAME")
    shell = SimpleNamespace(user_ns={"__vsc_ipynb_file__": "/home/me/a.ipynb"})
    monkeypatch.setattr(front_end, "_shell", lambda: shell)
    assert front_end.has_front_end()


def test_a_stop_before_the_first_point_runs_none_and_a_listener_is_called_instead_of_printing(tmp_path, capsys):
    for stop, done, words in ((False, 2, "2 of 2 settings in "), (True, 0, "Stopped: 0 of 3 settings in ")):
        sweep, seen = lab.LiveSweep(points(2 + stop), results=tmp_path / str(stop)), []
        sweep.listener = lambda sweep=sweep, seen=seen: seen.append(len(sweep.tables))
        if stop:
            sweep.stop()
        rows = sweep.start().join()
        assert (seen[-1], sweep.running) == (done, False)
        assert sweep.status().startswith(words)
        assert set(rows["status"]) == {"not run: stopped" if stop else "ok"}
    assert capsys.readouterr().out == ""


def test_the_stop_of_one_sweep_leaves_anothers_point_alone(tmp_path):
    first = lab.LiveSweep([replace(POINT, steps=60)], results=tmp_path / "first")
    second = lab.LiveSweep([replace(POINT, seed=1)], results=tmp_path / "second")
    first.start()
    second.start().stop()
    assert set(first.join()["status"]) == {"ok"}
    assert second.join()["status"].tolist() == ["not run: stopped"]
    second.stop()  # over already: there is nothing of it to end


def test_what_the_sweep_raises_is_raised_in_the_cell(tmp_path):
    (tmp_path / "file").write_text("")
    sweep = lab.LiveSweep(points(1), results=tmp_path / "file" / "rows").start()
    with pytest.raises(InputError, match="which cannot be written"):
        sweep.join()
    assert ", then an error" in sweep.status()
