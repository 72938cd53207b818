"""Every result shows itself: `print` under 80 columns with its figures, `_repr_html_` with the same ones."""

import importlib
import inspect
import pkgutil
import re
from dataclasses import is_dataclass

import pandas as pd
import pytest
from test_compare import rows, step, thrice

import tclab
from tclab import lab, timing, trace
from tclab._display import Display, Shown
from tclab.sweeps._rows import frame_html, without_time
from tclab.timing._advice import Advice, Suggestion
from tclab.timing._verdict import Pair

POINT = tclab.Point(scale=0.01, batch_size=2, networks=1, device="cpu")
GRAPH = tclab.CellGraph.synthetic(0.01).without_metabolism()
PAIR = Pair("node_mask", "edge_mask", "FASTER", ratio=0.5234, interval=(0.51, 0.54))


def ledger():
    with timing.Ledger() as made:
        for _ in made.steps(range(3)):
            with made.stage("forward"):
                pass
    return made


def view():
    with tclab.view(GRAPH, [[0], [1, 2]], "node_mask") as made:
        return made


def raced():
    arms = {name: lambda n=n: sum(range(n)) for name, n in (("a", 500), ("b", 1000))}
    return timing.race(arms, budget_seconds=0.3, processes=None)


def advice(measured=PAIR):
    change = "node_mask in place of edge_mask, which copies every edge of the graph for every sample"
    one = Suggestion(change, "The rows hold 30 steps.", 0.52, (0.5, 0.54), "model", measured=measured)
    return Advice("from 30 steps of hetero_cell", (one,), ("what a GPU would say",))


# result → a figure of it that both forms have
RESULTS = {
    "Points": (lambda: tclab.grid(models="hetero_cell,dango", batch_sizes="2,5"), "5, 2"),
    "rows": (lambda: rows(step("edge_mask", 0.2), step("node_mask", 0.0123), step("khop_1", status="oom")), "12.3 ms"),
    "no rows": (lambda: rows(step()).head(0), "0 settings"),
    "findings": (lambda: lab.findings(rows(step("edge_mask", 0.2), step("node_mask", 0.0123))), "node_mask"),
    "Ledger": (ledger, "forward"),
    "Race": (raced, "a against b"),
    "Pair": (lambda: PAIR, "0.5234× the time"),
    "Advice": (advice, "0.52×"),
    "Fits": (lambda: tclab.fits(POINT), "available"),
    "Comparison": (lambda: tclab.compare(rows(*thrice(seconds=0.2)), rows(*thrice())), "FASTER"),
    "Check": (lambda: tclab.check("hetero_cell", GRAPH.select(1), strategies="node_mask"), "passed"),
    "trace Report": (lambda: trace.analyze(trace.example()), "self time"),
    "trace Comparison": (lambda: trace.compare(trace.example(), trace.example()), "b : a"),
    "networks": (lambda: GRAPH.networks, "tflink"),
    "view": (view, "2 copies"),
}  # fmt: skip


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_shows_its_figures_in_a_terminal_and_in_a_notebook(name):
    make, figure = RESULTS[name]
    result = make()
    text = str(result)
    assert repr(result) == text
    assert figure in re.sub(r"\s+", " ", text)
    assert max(map(len, text.splitlines())) < 80, text
    assert len(text) < 4000
    html = result._repr_html_()
    assert html.startswith("<div")
    assert figure.replace("_", " ") in html.replace("_", " ")
    assert "object at 0x" not in text + html


def test_no_result_that_is_a_dataclass_has_the_repr_of_one():
    for kind in filter(is_dataclass, Shown.__subclasses__()):
        assert kind.__repr__ is Shown.__repr__, kind


def test_a_table_of_a_notebook_has_four_digits_and_no_nan_times_and_bytes_their_unit():
    frame = pd.DataFrame({"error": [9.4e-13, None], "mask_seconds": [0.0311734, 2.0], "bytes": [1234567, 1]})
    frame["bytes_per_second"] = [0.0311734, None]
    html = frame_html(frame.set_index(pd.Index(["<b>", "c"], name="model")))
    assert ">model<" in html
    assert re.findall(r"<td[^>]*>(.*?)</td>", html) == [
        "9.4e-13", "31.2 ms", "1.23 MB", "0.03117", "", "2 s", "1 B", ""
    ]  # fmt: skip
    assert frame["mask_seconds"].tolist() == [0.0311734, 2.0]
    assert "nothing" in frame_html(frame.head(0))
    assert frame_html(pd.DataFrame({"a": range(100)})).count("<tr") < 70


def test_a_cell_that_is_too_wide_goes_on_below():
    display = Display("t", ("name", "why"), [("a", "word " * 40), ("b", "x" * 90)], ["n " * 60])
    lines = display.text().splitlines()
    assert max(map(len, lines)) <= 79
    assert sum(line.count("word") for line in lines) == 40


@pytest.mark.parametrize(
    "fields",
    [{}, {"batch_size": 2}, {"networks": ("physical", "tflink"), "overheads": ("isnan_checks",), "ranks": 2, "seed": 4},
     {"graph": "a folder", "perturbations": "with two  spaces.txt", "hidden": 16, "layers": 2, "steps": 9}],
)  # fmt: skip
def test_a_point_is_shown_as_the_call_that_makes_it(fields):
    point = tclab.Point(**fields)
    assert eval(repr(point), {"Point": tclab.Point}) == point
    assert "optimizer" not in repr(point)


def test_completion_offers_the_public_names_and_the_fields_of_a_point():
    for module in pkgutil.walk_packages(tclab.__path__, "tclab."):
        if module.ispkg:
            package = importlib.import_module(module.name)
            if hasattr(package, "__all__"):
                assert dir(package) == sorted(package.__all__), module.name
    assert dir(tclab) == sorted(tclab.__all__)
    assert list(inspect.signature(tclab.Point).parameters)[:5] == ["graph", "scale", "model", "strategy", "batch_size"]


def test_rows_show_points_with_a_time_and_name_the_others_by_their_reason():
    dango = {"model": "dango", "loss": "dango", "status": "skipped: dango reads no masked graph"}
    made = rows(
        *(step(seconds=seconds, batch_size=size, networks=networks) | {"seed": seed}
          for size in (4, 1, 8) for seed, networks, seconds in ((1, 9, 0.2), (2, 1, 0.1))),
        step(**dango), step(**dango, loop="lightning"),
    )  # fmt: skip
    shown = str(made)
    assert "8 settings, 6 timed" in shown
    assert "2 settings (dango node_mask, batch 4): skipped: dango reads no masked graph." in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) < 80
    cells = [line.split()[1:4] for line in shown.splitlines() if line.startswith(("strategy", "node_mask"))]
    assert cells[0] == ["batch_size", "networks", "seed"]  # of what differs; a loss and a loop of untimed points do not
    assert cells[1:] == [[str(size), *one] for size in (1, 4, 8) for one in (["1", "2"], ["9", "1"])]
    lost = [step(status="oom", batch_size=size, seed=seed) for size in (1, 2, 3, 4, 5) for seed in (0, 1)]
    counts = "10 settings (2 of hetero_cell node_mask, batch 1; 2 of … batch 2; 2 of … batch 3 and 4 more): oom."
    assert without_time(rows(*lost)) == [counts.replace("…", "hetero_cell node_mask,")]


def test_rows_without_a_step_show_as_they_are():
    assert "0 settings" not in str(rows(step(stage="data_wait"), step(stage="forward")))
    assert "mean step" not in str(rows(step())[["stage", "strategy", "mean_seconds"]])
