"""Lines of code that nobody marked: where a step's time went, what is in a loop, what waits for the device."""

import json
import os
import random
import signal
import sys
import threading
from pathlib import Path
from time import perf_counter, sleep

import pytest
import torch

from tclab import InputError, timing
from tclab.timing._line_times import Lines, LineTime

pytestmark = [
    pytest.mark.clock,
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="lines are sampled by a timer's signal"),
]


def spin(seconds):
    until = perf_counter() + seconds
    while perf_counter() < until:
        pass


def decode(x):
    found = []
    for i in range(len(x)):
        found.append(float(x[i]))  # noqa: PERF401
    return found


def line_number(text):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, start=1) if line.strip() == text)


def share(lines, text):
    return sum(one.share for one in lines.times if one.text == text and one.where == "main")


def test_each_stages_lines_are_named_with_their_share():
    document = json.dumps(list(range(3000)))
    took = dict.fromkeys(("json", "sleep", "wait"), 0.0)
    with timing.Ledger(lines=True) as ledger:
        for _ in ledger.steps(range(120)):
            begin = perf_counter()
            with ledger.stage("forward"):
                while perf_counter() < begin + 0.006:
                    json.loads(document)  # holds the interpreter's lock; C
            middle = perf_counter()
            with ledger.stage("backward"):
                sleep(0.003)
            took["json"] += middle - begin
            took["sleep"] += perf_counter() - middle
    lines = ledger.lines
    whole = sum(took.values())
    loads, waits = "json.loads(document)  # holds the interpreter's lock; C", "sleep(0.003)"
    forward = [one for one in lines.times if one.stage == "forward"]
    assert sum(one.share for one in forward) == pytest.approx(took["json"] / whole, abs=0.15)
    assert share(lines, waits) == pytest.approx(took["sleep"] / whole, abs=0.15)
    first = lines.by_line()[0]
    assert (first.stage, first.text, first.file) == ("forward", loads, __file__)
    assert first.line == line_number(loads)
    assert first.loops == 1  # the while loop; the loop over the steps is none within a step
    assert next(one for one in lines.times if one.text == waits).loops == 0
    assert sum(one.share for one in lines.times) == pytest.approx(1)
    assert ledger.adds_up()
    assert "json.loads" in str(ledger)
    frame = lines.frame()
    assert frame.loc[0, "seconds"] > 0
    assert set(frame["where"]) == {"main"}


def test_waits_of_a_line_are_counted_in_a_step_that_is_not_timed():
    x = torch.arange(10.0)
    with timing.Ledger(lines=True) as ledger:
        for _ in ledger.steps(range(12)):
            with ledger.stage("forward"):
                until = perf_counter() + 0.02
                while perf_counter() < until and len(ledger):
                    pass
                for _ in range(300):
                    x + 1
                decode(x)
    assert len(ledger) == 11
    assert ledger.adds_up()
    decoding = [one for one in ledger.lines.times if one.text == "found.append(float(x[i]))  # noqa: PERF401"]
    for one in decoding:
        assert one.waits == 10
        assert one.loops >= 1
    assert ledger.lines.cuda is False
    assert all(one.waits == 0 for one in ledger.lines.times if one.text == "x + 1")


def test_a_program_without_stages_is_told_by_function_and_line():
    state = random.getstate()
    with timing.profile(hertz=100.0) as seen:
        begin = perf_counter()
        spin(0.3)
        middle = perf_counter()
        sleep(0.15)
        end = perf_counter()
    assert random.getstate() == state
    spun = seen.lines.by_function()["spin"]
    assert spun == pytest.approx((middle - begin) / (end - begin), abs=0.2)
    assert share(seen.lines, "sleep(0.15)") == pytest.approx((end - middle) / (end - begin), abs=0.2)
    assert f"spin {spun:.0%}" in str(seen)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_what_a_line_calls_in_a_library_is_named_beside_it():
    with timing.profile() as seen:
        until = perf_counter() + 0.4
        while perf_counter() < until:
            json.dumps(list(range(3000)), indent=1)
    calls = {one.inside: one.share for one in seen.lines.times if one.text.startswith("json.dumps(")}
    assert max(calls, key=calls.get) == "json.dumps"
    assert sum(calls.values()) > 0.5
    (line,) = [one for one in seen.lines.by_line() if one.text.startswith("json.dumps(")]
    assert line.share == pytest.approx(sum(calls.values()))


def test_a_notebooks_cell_is_the_users_code():
    source = "total = 0\nfor i in range(1000):\n    while perf_counter() < until:\n        total += 1\n"
    names = {"perf_counter": perf_counter, "until": perf_counter() + 0.2, "__name__": "__main__"}
    with timing.profile() as seen:
        exec(compile(source, f"{os.sep}tmp{os.sep}ipykernel_77{os.sep}123.py", "exec"), names)
    assert seen.lines.by_line()[0].place in ("cell:3", "cell:4")
    assert seen.lines.by_line()[0].loops == 2


@pytest.mark.slow
def test_lines_are_sampled_in_a_kernel():
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    marked = "with timing.Ledger(lines=True) as ledger:\n    for _ in ledger.steps(range(8)):\n        spin(0.05)"
    cells = [
        "from time import perf_counter\nfrom tclab import timing",
        "def spin(seconds):\n    until = perf_counter() + seconds\n    while perf_counter() < until:\n        pass",
        marked,
        "first = ledger.lines.by_line()[0]\nprint(first.place, first.function, first.loops, first.text)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    done = nbclient.NotebookClient(notebook, kernel_name="python3", timeout=120).execute()
    place, function, loops, *text = done.cells[-1].outputs[0].text.split()
    assert (place in ("cell:3", "cell:4"), function, loops) == (True, "spin", "1")
    assert " ".join(text) in ("while perf_counter() < until:", "pass")


def test_a_script_is_profiled_with_its_arguments_and_ends_as_it_does(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, time\nfrom neighbour import NUMBER\nassert __name__ == '__main__'\n"
        "until = time.perf_counter() + 0.1\nwhile time.perf_counter() < until: pass\nprint(sys.argv[1:], NUMBER)\n"
        "sys.exit(int(sys.argv[1]))\n"
    )
    (tmp_path / "neighbour.py").write_text("NUMBER = 7\n")
    argv, path = list(sys.argv), list(sys.path)
    seen = timing.profile_script(script, ["3", "--fast"])
    assert capsys.readouterr().out == "['3', '--fast'] 7\n"
    assert seen.exit_code == 3
    assert (sys.argv, sys.path) == (argv, path)
    assert seen.lines.by_line()[0].place == "train.py:5"
    script.write_text("raise ValueError('no')\n")
    failed = timing.profile_script(str(script))
    assert failed.exit_code == 1
    assert "ValueError: no" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"no\.py"):
        timing.profile_script(tmp_path / "no.py")


def test_where_no_lines_can_be_sampled_it_says_why():
    found = []

    def elsewhere():
        try:
            timing.Ledger(lines=True).__enter__()
        except InputError as error:
            found.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in found[0]
    with timing.profile(), pytest.raises(InputError, match="already"):
        timing.Ledger(lines=True).__enter__()
    before = signal.signal(signal.SIGALRM, lambda number, frame: None)
    try:
        with pytest.raises(InputError, match="SIGALRM"), timing.profile():
            pass
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(InputError, match="lines=True"):
        print(timing.Ledger().lines)


def test_a_ledger_that_is_not_a_context_samples_its_steps_alone():
    ledger = timing.Ledger(lines=True)
    for _ in ledger.steps(range(8)):
        spin(0.03)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
    stages = ledger.lines.frame().groupby("stage").seconds.sum().to_dict()  # a sample may meet its beginning
    assert max(stages, key=stages.get) == "other"
    assert set(stages) <= {"other", "data_wait", "outside"}
    assert ledger.lines.by_line()[0].function == "spin"


def test_waits_are_ranked_by_what_they_cost_and_predicted_on_a_cpu():
    x = torch.arange(6.0)
    with timing.syncs() as found:
        decode(x)
        x[x > 2]
        x.tolist()
        repr(x)
        x.cpu()
    ranked = found.ranked()
    assert [times for _, times, _ in ranked] == [6, 1, 1, 1, 1]
    assert ranked[0][0].endswith(f":{line_number('found.append(float(x[i]))  # noqa: PERF401')} in decode")
    assert all(__file__ in place and seconds is None for place, _, seconds in ranked)
    assert found.operations == {"_local_scalar_dense": 6, "index": 1, "tolist": 1, "__repr__": 1, "cpu": 1}
    assert "forecast" in str(found)
    assert "cpu" not in vars(torch.Tensor)  # put back
    found.cuda = True  # as if on a device: then seconds decide
    found.seconds = dict.fromkeys(found.seconds, 0.001)
    found.seconds[ranked[3][0]] = 0.5
    assert found.ranked()[0] == (ranked[3][0], 1, 0.5)
    assert "500 ms" in str(found)


@pytest.mark.filterwarnings("ignore:.*does not know how to trace the builtin")
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_function_is_not_disturbed(backend):
    """A signal that comes while torch.compile's hook is set: its handler is not traced."""

    @torch.compile(backend=backend)
    def model(x):
        y = x + 1
        sleep(0.004)  # a graph break, in which the hook stays
        return y * 2

    def frames():
        return torch._dynamo.utils.counters["frames"]["total"]

    model(torch.ones(3))
    before = frames()
    with timing.Ledger(lines=True) as ledger:
        for _ in ledger.steps(range(60)):
            with ledger.stage("forward"):
                model(torch.ones(3))
    assert frames() == before  # no other function was compiled
    assert share(ledger.lines, "sleep(0.004)  # a graph break, in which the hook stays") > 0.5


@pytest.mark.slow
def test_lines_cost_less_than_two_percent_of_steps_of_20_ms():
    """Its own clock around each handler; the race beside it is as wide as the machine is busy."""

    def loop(ledger):
        for _ in ledger.steps(range(60)):
            spin(0.02)

    with timing.Ledger(lines=True) as ledger:
        loop(ledger)
    wall = sum(ledger.seconds()["step"])
    assert ledger.lines.own_seconds / wall < 0.02
    receipt = timing.receipt(loop, lines=True, budget_seconds=15)
    assert receipt.interval is None or receipt.interval[0] < 1.02


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "NAdam", "Adagrad"])
def test_an_optimizers_count_of_steps_is_no_wait_since_it_stays_on_the_cpu(optimizer):
    model = torch.nn.Linear(3, 1)
    made = getattr(torch.optim, optimizer)(model.parameters())
    for _ in range(2):  # the first step makes the counts
        with timing.syncs() as found:
            loss = model(torch.ones(2, 3)).sum()
            loss.backward()
            made.step()
            loss.item()
    assert found.count == 1
    assert found.operations == {"_local_scalar_dense": 1}


def test_a_line_whose_source_is_not_known_has_no_empty_quotes():
    one = LineTime("worker 0", "collate", "", 0, "", "torch.utils.data.collate", 0, 1.0, 1.0)
    seen = Lines((one,), 100, 50.0)
    assert "collate 100% torch.utils.data.collate" in str(seen)
    assert "`" not in str(seen)
