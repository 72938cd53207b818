"""Every chart of something that was measured says in its title on which machine; and what some charts must show."""

import pytest
from stage_rows import every_mode
from test_compare import rows as framed
from test_compare import step
from test_cost_model import SEEN, made_up
from test_lab_overheads import rounds_of
from test_scaling import stages_of
from test_scaling import step as of_ranks
from test_trust import pair

import tclab
from tclab import case_study, lab, timing
from tclab.sweeps.predict import fit_costs
from tclab.sweeps.predict._epoch import Costs, Epoch, Prediction
from tclab.sweeps.store._machine_label import this_machine
from tclab.timing import environment

MADE_UP = "cpu · 2 cores · Made Up"  # the machine of rows that were made by hand
CELLS = [pair("a", "b", "SLOWER", str(size)) for size in (4, 16)]
NOT_MEASURED = {
    "mask_picture": "a drawing",
    "reach_chart": "of a graph",
    **dict.fromkeys(("trace_chart", "trace_timeline"), "of a trace, whose machine a trace does not name"),
}


def modes():
    return framed(*every_mode())


def ranks():
    return framed(
        *[
            one
            for n in (1, 2)
            for one in (*stages_of(n, 0.1, {"communication": 0.01} if n > 1 else {}), of_ranks(n, 0.1))
        ]
    )


def grid():
    return framed(*[step(s, batch_size=b, networks=n) for s in ("node_mask", "dense") for b in (1, 2) for n in (1, 2)])


def ledger():
    with timing.Ledger() as found:
        for _ in found.steps(range(2)):
            pass
    return found


def costs():
    return fit_costs(made_up(SEEN, noise=0.02))


def epochs():
    predicted = Prediction(1.0, 0.9, 1.1, 8)
    return [Epoch(tclab.Point(device="cpu"), Costs([0.1], 0.5, 0.2, 2), predicted, predicted, 1.0, "", "", None)]


def published(root):
    return case_study.published_figures(root / "data_samples" / "published_measurements.csv")


def overheads(rows):
    return case_study.overheads_chart(case_study.overhead_costs(rows), rows)


OF_ROWS = {
    "result_chart, advice": lambda _: lab.charts.result_chart(
        tclab.advise(framed(step("edge_mask", 1.0), step("node_mask")))),
    "result_chart, comparison": lambda _: lab.charts.result_chart(tclab.compare(grid(), grid())),
    "overheads_chart": lambda _: overheads(framed(*rounds_of("isnan_checks", 1.5, 2))),
    "ratios_chart": lambda root: case_study.ratios_chart(
        case_study.published_ratios(modes(), published(root)), modes()),
    "speed_up": lambda _: lab.charts.speed_up(ranks(), ranks()),
    "stages": lambda _: lab.charts.stages(modes()),
    "throughput, batch_size": lambda _: lab.charts.throughput(grid(), "batch_size"),
    "throughput, networks": lambda _: lab.charts.throughput(grid(), "networks"),
    "throughput": lambda _: lab.charts.throughput(grid()),
}  # fmt: skip
OF_THIS_MACHINE = {
    "break_even_chart": lambda **where: lab.charts.break_even_chart(
        {"fit": costs()}, [16, 64], deleted_share=0.01, **where),
    "result_chart, epoch": lambda: lab.charts.result_chart(epochs()),
    "result_chart, ledger": lambda: lab.charts.result_chart(ledger()),
    "race_chart": lambda **where: lab.charts.race_chart([pair("a", "b", "FASTER")], "b", **where),
    "race_chart, cells": lambda **where: lab.charts.race_chart(CELLS, "b", by="samples", title="Two sizes", **where),
}  # fmt: skip


def titles(chart):
    """The title of a chart and each line of its subtitle."""
    title = chart.to_dict()["title"]
    lines = title.get("subtitle", [])
    return [title["text"], *([lines] if isinstance(lines, str) else lines)]


@pytest.mark.parametrize("name", OF_ROWS)
def test_a_chart_of_rows_names_the_machine_of_the_rows(name, root):
    said = " ".join(titles(OF_ROWS[name](root)))
    assert "Made Up" in said, said
    assert this_machine() not in said


@pytest.mark.parametrize("name", OF_THIS_MACHINE)
def test_a_chart_of_what_was_measured_here_names_this_machine_or_what_it_is_told(name):
    said = " ".join(titles(OF_THIS_MACHINE[name]()))
    assert str(environment()["cpu"]) in said, said
    if "result_chart" in name:
        return
    told = " ".join(titles(OF_THIS_MACHINE[name](where="cuda · H200")))
    assert "cuda · H200" in told
    assert str(environment()["cpu"]) not in told
    assert f"cpu · {environment()['cores']} core" in " ".join(titles(OF_THIS_MACHINE[name](where="cpu")))


def test_no_public_chart_is_left_out():
    drawn = {name.split(",")[0] for name in (*OF_ROWS, *OF_THIS_MACHINE, *NOT_MEASURED)}
    charts = {name for name in case_study.__all__ if name.endswith("_chart")}
    assert {*lab.charts.__all__, *charts} == drawn | {"ratios", "stacked", "lines", "chart_title"}
