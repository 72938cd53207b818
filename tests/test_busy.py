"""Points that ran while others wanted the processors are told so; what is not known is never taken for quiet."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from synthetic_machine import SyntheticMachine
from test_compare import rows, step

import tclab
from tclab import lab, timing
from tclab.command._point_verbs import _end
from tclab.lab.reports._findings import answer, axis_sentences
from tclab.sweeps import _run
from tclab.sweeps._rows import busy_text, graph_text, not_measured, this_machine
from tclab.sweeps.predict import Costs, Epoch, Prediction
from tclab.timing._environment import conditions
from tclab.timing._race import Races


def moments(percent, *, load=1.0, steal=0.0):
    """`conditions` around ten seconds in which something waited for a processor for so much of the time."""
    waited = None if percent is None else percent / 10
    begin = {"monotonic_seconds": 5.0, "cpu_pressure_seconds": 0.0, "steal_seconds": 0.0}
    end = {"monotonic_seconds": 15.0, "cpu_pressure_seconds": waited}
    return json.dumps([begin | {"load": load}, end | {"load": load, "steal_seconds": steal}])


def ran(percent, *, load=1.0, steal=0.0, strategy="node_mask", **fields):
    """A point's row whose timed steps had this pressure."""
    around = moments(percent, load=load, steal=steal)
    return step(strategy, conditions=around, **{"threads": 2, "workers": 0, **fields})


def others(*made):
    return rows(*made)["contention"].notna().tolist()


def test_a_point_is_busy_where_the_processors_were_shared_during_its_timed_steps():
    assert others(ran(19.0), ran(21.0)) == [False, True]
    assert others(ran(1.0, steal=2.0, workers=4), ran(1.0, steal=0.1)) == [True, False]  # a hypervisor's
    before = ran(99.0)
    first, last = json.loads(before["conditions"])
    first["cpu_pressure_seconds"] = last["cpu_pressure_seconds"]  # that was the start, or the point before
    assert others(before | {"conditions": json.dumps([first, last])}) == [False]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"threads": 2, "workers": 0}, True),  # no more than the cores: it cannot be their own
        ({"threads": 2, "workers": 1, "load": 2.5}, False),
        ({"threads": 2, "workers": 1, "load": 3.5}, True),  # more ran than all of its own
        ({"threads": 2, "workers": 1, "load": None}, False),
        ({"threads": 1, "workers": 1}, True),
        ({"threads": 1, "ranks": 2, "backend": "gloo", "load": 3.0}, False),
        ({"threads": 2, "cpu_limit_cores": 1.0}, False),  # a limit stops its own
        ({"threads": None}, False),
    ],
)
def test_pressure_of_a_points_own_making_is_not_laid_on_others(fields, expected):
    assert others(ran(90.0, **fields)) == [expected]
    made = rows(ran(90.0, **fields))
    assert ("1 of 1 run shared the CPU with other programs" in busy_text(made)) == expected
    assert others(ran(10.0, **fields)) == [False]


def test_the_findings_and_the_answer_say_so_once_and_claim_no_interval(capsys):
    made = rows(ran(99.4), ran(4.0, strategy="edge_mask"), ran(61.0, strategy="dense", threads=1))
    sentence = (
        "2 of 3 runs shared the CPU with other programs, so the times are unreliable: "
        "hetero_cell node_mask, batch 4; hetero_cell dense, batch 4 (the first run: in 10 s something "
        "waited for a processor 99% of the time). Measure them again on a quiet machine (repeats=2: a quiet run "
        "replaces a disturbed one), or race them (race_points, tclab race), where all take turns. "
        "With OMP_NUM_THREADS=1 torch's threads suffer less."
    )
    assert lab.findings(made).count(sentence) == 1
    assert sentence in " ".join(str(made).split())
    _end(made, False)  # what a sweep by the command prints
    assert " ".join(capsys.readouterr().out.split()).count(sentence) == 1
    assert "Made Up · busy, at batch" in answer(made)[0]
    # measured again on a quiet machine: these runs alone count, in the answer, the charts and the advice
    again = [ran(4.0, strategy=name, threads=n, measured_at="2026-01-02T00:00:00+00:00", seconds=seconds)
             for name, n, seconds in (("node_mask", 2, 0.05), ("dense", 1, 0.2))]  # fmt: skip
    both = rows(ran(99.4), ran(4.0, strategy="edge_mask"), ran(61.0, strategy="dense", threads=1), *again)
    assert "node_mask has the highest throughput: 80 samples/s" in axis_sentences(both)[0]
    assert "busy" not in str(lab.charts.throughput(both).to_dict()["title"])
    assert not [one for one in (*lab.findings(both), tclab.advise(both).busy) if "other programs" in one]
    (slow,) = answer(rows(ran(5.0), ran(99.0, strategy="edge_mask", seconds=0.2)))
    assert "In one run each, node_mask had the highest throughput" in slow
    runs = [ran(99.0, strategy=name, measured_at=f"2026-01-0{i}T00:00:00+00:00", seconds=0.01 * i + shift)
            for i in (1, 2, 3) for name, shift in (("node_mask", 0.1), ("edge_mask", 0.4))]  # fmt: skip
    (repeated,) = answer(rows(*runs))
    assert "one run each" not in repeated.lower()
    assert re.search("node_mask ran 2× as fast as edge_mask. (A batch of|Settings)", slow)
    assert "[" not in slow
    assert "busy" not in " ".join(lab.findings(rows(ran(5.0), ran(4.0, strategy="edge_mask"))))


def test_what_is_no_row_says_so_too(monkeypatch):
    around, machine = iter(json.loads(moments(78.4))), SyntheticMachine()
    monkeypatch.setattr("tclab.timing._race.conditions", lambda: next(around))
    arms = {"a": machine.arm("a", 0.01), "b": machine.arm("b", 0.011)}
    made = timing.race(arms, budget_seconds=5, clock=machine.clock)
    calm, epoch = replace(made, busy_percent=None), replace(epochs()[0], busy_percent=78.4)
    words = "the machine was busy: something waited for a processor 78 % of the time"
    for shown in (made, Races({1: calm, 2: made}, None), epoch):
        assert words in " ".join(str(shown).split())
    assert words not in " ".join(str(calm).split())
    around = iter(json.loads(moments(78.4)))
    monkeypatch.setattr("tclab.timing._ledger.conditions", lambda: next(around))
    with timing.Ledger() as ledger:
        list(ledger.steps(range(3)))
    charts = [lab.charts.result_chart(one) for one in ([*epochs(), epoch], ledger)]
    for chart in (lab.charts.race_chart(made, "a"), *charts):
        assert this_machine() in titles(chart)
        assert "· busy" in titles(chart)
    there = titles(lab.charts.race_chart(calm, "a", where="cuda · H200"))
    assert ("cuda · H200" in there, "busy" in there) == (True, False)


def test_a_chart_names_the_machine_that_was_busy_and_the_graph_that_all_its_rows_share():
    made = rows(ran(9.0), ran(9.0, strategy="edge_mask"), ran(99.0, batch_size=1))
    machine, of, *_ = lab.charts.throughput(made, "batch_size").to_dict()["title"]["subtitle"]
    assert (machine, of) == ("cpu · 2 cores · Made Up · busy", "synthetic, scale 0.1 · batch 1 and 4, 2 networks")
    machine, *_ = lab.charts.throughput(made).to_dict()["title"]["subtitle"]
    assert machine == "cpu · 2 cores · Made Up"  # the busy point is not in this chart
    assert graph_text(rows(step(scale=0.05), step(scale=0.1))) == ""
    lost = step(scale=1.0) | {"status": "oom"}
    assert graph_text(rows(step(scale=0.05), lost)) == "synthetic, scale 0.05"
    own = step(graph="/cache/graph-2630cd06ce49.npz", scale=None, nodes=1234)
    assert graph_text(rows(own)) == "own graph, 1,234 nodes"


@pytest.mark.parametrize(
    ("others", "cores", "threads", "said"),
    [(1.0, 2, 2, "1.0 of 2 cores"), (1.9, 2, 1, "1.9 of 2 cores"), (0.3, 2, 2, ""), (1.0, 2, 1, ""), (None, 2, 2, "")],
)
def test_a_sweep_beside_busy_processes_warns_before_it_begins(monkeypatch, others, cores, threads, said):
    monkeypatch.setattr(_run, "contention", lambda before, after: SimpleNamespace(busy_cores=others))
    monkeypatch.setattr(_run, "sleep", lambda seconds: None)
    monkeypatch.setattr(_run, "usable_cores", lambda: cores)
    monkeypatch.setattr(_run, "threads_of", lambda ranks: threads)
    words = _run.others_now()
    assert words.startswith(f"other programs keep {said} busy" if said else "")
    assert bool(words) is bool(said)
    assert words.endswith("OMP_NUM_THREADS=1") is (said != "" and threads == 2)  # what to do


def test_a_sweep_says_it_as_a_sentence_unless_it_is_silent(monkeypatch, tmp_path, capsys):
    def failed(point, **_):
        return not_measured(point, point.skipped() or "failed: made up")

    monkeypatch.setattr("tclab.sweeps._sweep.others_now", lambda: "other programs keep 2.0 of 2 cores busy now")
    monkeypatch.setattr("tclab.sweeps._sweep.point_rows", failed)
    points = [tclab.Point(model="dango", strategy="node_mask"), *(tclab.Point(batch_size=n) for n in (1, 2))]
    tclab.sweep(points, results=tmp_path)  # the first cannot run
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(" batch")[0] for line in said] == [
        "other programs keep 2.0 of 2 cores busy now", "[1/3] dango node_mask", "[2/3] hetero_cell node_mask",
        "[3/3] hetero_cell node_mask",
    ]  # fmt: skip
    tclab.sweep(points, results=tmp_path, retry=True, progress=None)
    assert capsys.readouterr().err == ""


def test_busy_and_stolen_seconds_are_of_the_processors_that_this_process_may_use(monkeypatch):
    text = "cpu  9 9 9 9 9 9 9 9\ncpu0 100 10 50 7000 30 5 5 20 0 0\ncpu1 1 1 1 1 1 1 1 1 1 1\nintr 5"
    monkeypatch.setattr("tclab._limits.text_of", lambda path: text)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    found = conditions()
    assert (found["busy_seconds"], found["steal_seconds"]) == (1.9, 0.2)


def epochs():
    predicted = Prediction(1.0, 0.9, 1.1, 8)
    return [Epoch(tclab.Point(device="cpu"), Costs([0.1], 0.5, 0.2, 2), predicted, predicted, 1.0, "", None)]


def titles(chart):
    """The title of a chart and each line of its subtitle, which say where it was measured."""
    title = chart.to_dict()["title"]
    lines = title.get("subtitle", [])
    return " ".join([title["text"], *([lines] if isinstance(lines, str) else lines)])
