"""The wrong figures: from runs made by hand, so that every figure is known, and from one that is really run."""

import re
from types import SimpleNamespace

import pandas as pd
import pytest
import vl_convert

from tclab import InputError, Point
from tclab.case_study import _artefacts as artefacts
from tclab.case_study._artefacts import Figure, Run, WrongFigures
from tclab.lab.charts._style import STAGE_COLOURS
from tclab.lab.charts._trace_charts import CATEGORY_COLOURS
from tclab.timing import environment


def made(name, step, *, readings, stages, nested, busy=None):
    """Return a run whose trace counts each moment `nested` times."""
    wall_us = step * artefacts._PROFILED * 1e6
    report = SimpleNamespace(
        ops=pd.DataFrame({"category": ["forward", "other"], "total_us": [wall_us * (nested - 1), wall_us]}),
        categories=pd.DataFrame({"category": ["forward", "other"], "self_us": [wall_us * 0.75, wall_us * 0.25]}),
        breakdown=pd.DataFrame({"busy_us": [busy and busy * artefacts._PROFILED * 1e6]}),
    )
    every = {**dict.fromkeys(("data_wait", "transfer", "mask", "loss", "optimizer"), [0.0] * 3)}
    every |= {key: [value] * 3 for key, value in stages.items()}
    every |= {"step": [step] * 3}
    return Run(name, [10 * step, *[step] * 3], 1, readings, every, report, busy is not None)


@pytest.fixture
def runs():
    slow = made("slow", 0.8, readings=[0.1, 1.25, 1.25, 1.25, 1.15], stages={"forward": 0.6, "backward": 0.2},
                nested=6)  # fmt: skip
    fast = made("fast", 0.1, readings=[10.0] * 5, stages={"forward": 0.02, "backward": 0.08}, nested=2)
    return slow, fast


def test_each_mistake_gives_what_it_must_and_the_right_figure_stays(runs):
    bar, nested = artefacts.progress_bar(*runs), artefacts.nested_events(*runs)
    small = [
        made(run.name, 0.3, readings=[1.0], stages={"data_wait": 0.1, "forward": own, "backward": 0.1}, nested=2)
        for run, own in zip(runs, (0.14, 0.05), strict=True)
    ]
    other, backward = artefacts.another_configuration(*small, *runs), artefacts.no_backward(*runs)
    for figure in (bar, nested, other, backward):
        assert figure.right == pytest.approx(8.0)
    assert bar.wrong == pytest.approx(10.0)
    assert nested.wrong == pytest.approx(8 * 6 / 2 * 4)  # four steps of the slow model beside one of the fast
    assert other.wrong == pytest.approx(0.24 / 0.15)  # without the wait for the loader
    assert backward.wrong == pytest.approx(0.6 / 0.02)
    assert "6.0 and 2.0 times" in nested.why
    assert "25% of slow's step and 80% of fast's" in backward.why
    assert "no GPU here" in other.why


def test_a_long_wait_in_few_steps_is_in_the_right_figure():
    slow, fast = (
        made(name, 0.1, readings=[10.0] * 5, stages={"forward": 0.1, "backward": 0}, nested=2)
        for name in ("slow", "fast")
    )
    slow.stages["step"][:] = [0.7, 0.1, 0.1]
    assert artefacts.progress_bar(slow, fast).right == pytest.approx(3.0)


def test_a_device_stands_for_itself():
    slow, fast = (
        made(
            name,
            step,
            readings=[1.0] * 5,
            stages={"forward": step, "backward": 0.0},
            nested=2,
            busy=busy,
        )
        for name, step, busy in (("slow", 0.8, 0.8), ("fast", 0.1, 0.02))
    )
    figure = artefacts.another_configuration(slow, fast, slow, fast)
    assert figure.wrong == pytest.approx(1.6 / 0.12)
    assert set(figure.parts["part"]) == {"host", "device"}
    assert "no GPU" not in figure.why


def test_a_figure_is_the_ratio_of_its_parts(runs):
    """A picture shows the very seconds that its figures are made of."""
    for make in (
        artefacts.nested_events,
        lambda slow, fast: artefacts.another_configuration(slow, fast, slow, fast),
        artefacts.no_backward,
        artefacts.progress_bar,
    ):
        figure = make(*runs)
        sums = figure.parts.groupby(["side", "bar"], sort=False)["seconds"].sum()
        (wrong, right) = figure.parts["side"].drop_duplicates()
        assert wrong.startswith("wrong")
        assert sums[wrong, "slow"] / sums[wrong, "fast"] == pytest.approx(figure.wrong)
        assert sums[right, "slow"] / sums[right, "fast"] == pytest.approx(figure.right)


def test_words_and_pictures_show_both_figures(runs):
    figures = WrongFigures({one.key: one for one in (artefacts.progress_bar(*runs), artefacts.nested_events(*runs))})
    words = re.sub(r"\s+", " ", str(figures))
    for key, figure in figures.items():
        assert f"{key}: How many times" in words
        assert f"{figure.wrong:.2f} × by the {figure.mistake}; {figure.right:.2f} × by the {figure.right_of}. " in words
        assert figure.why in words
        assert f">{figure.wrong:.2f} ×</td>" in figures._repr_html_()
    assert words.count("In this run the mistake changes the ratio by no more than") == 1
    assert "by no more than 1.25 ×." in words  # 10 for 8, and 96 for 8
    for drawn in (figures, *figures.values()):
        spec = drawn.chart().to_json()
        assert vl_convert.vegalite_to_png(spec)[:4] == b"\x89PNG"
        assert str(environment()["cpu"]) in str(drawn.chart().to_dict()["title"]["subtitle"])
    parts = figures["875"].chart().to_dict()["encoding"]["color"]["scale"]
    for name, colour in zip(parts["domain"], parts["range"], strict=True):
        assert colour == (CATEGORY_COLOURS | STAGE_COLOURS)[name]  # as in every other chart
    assert "96 × where 8 × is right" in figures["875"].chart().to_dict()["title"]["text"]


@pytest.mark.clock
def test_a_real_run_is_seen_by_every_clock():
    point = Point(
        scale=0.02, model="hetero_cell", strategy="subgraph", networks=2, batch_size=2, steps=12, device="cpu"
    )
    run = artefacts.record_run(point)
    assert len(run.seconds) == 12 - artefacts._PROFILED - 1
    assert len(run.readings) == 5
    assert all(reading > 0 for reading in run.readings)
    assert run.begin >= 1  # the first step is never among those that count
    assert {len(values) for values in run.stages.values()} == {len(run.seconds) - run.begin}
    assert run.mean("data_wait", "transfer", "mask", "forward", "loss", "backward", "optimizer") <= run.mean("step")
    figure = artefacts.nested_events(run, run)
    assert figure.right == 1.0
    assert figure.wrong == pytest.approx(artefacts._PROFILED)
    sums = figure.parts.groupby("side")["seconds"].sum()
    (wrong, right) = figure.parts["side"].drop_duplicates()
    assert sums[wrong] / (1 + artefacts._PROFILED) > 1.2 * sums[right] / 2  # each moment more than once
    # self time is the wall time of the profiled steps
    wall = run.report.steps["wall_us"].sum() / artefacts._PROFILED / 1e6
    assert sums[right] / 2 == pytest.approx(wall, rel=0.1)  # two bars of the same run


def test_too_few_steps_are_refused():
    with pytest.raises(InputError, match="steps is 5, expected at least 12"):
        artefacts.wrong_figures(steps=5)


@pytest.mark.slow
def test_two_allocators_are_told_together():
    figure = artefacts.page_faults(Point(scale=0.02, networks=1, batch_size=2, steps=2, warmup=0, device="cpu"))
    assert isinstance(figure, Figure)
    assert len(figure.parts) == 4
    seconds = figure.parts.set_index(["side", "bar"])["seconds"]
    (default, kept) = figure.parts["side"].drop_duplicates()
    assert figure.wrong == pytest.approx(seconds[default, "edge_mask"] / seconds[default, "node_mask"])
    assert figure.right == pytest.approx(seconds[kept, "edge_mask"] / seconds[kept, "node_mask"])
