"""The lines of a program that nobody marked: from py-spy's file, and from real runs of scripts."""

import json
import re
import sys
from collections import Counter

import pytest

from tclab import InputError, timing
from tclab.command import main
from tclab.timing._profile import _MOST, MAIN, OTHERS, WORKERS, Profile, read_samples

SPIN = "def spin(seconds):\n    until = perf_counter() + seconds\n    while perf_counter() < until:\n        pass\n"
TORCH = f"{json.__file__.removesuffix('json/__init__.py')}site-packages/torch"
RAW = f"""\
process 7:"python train.py";thread (7);<module> (/home/me/train.py:1) 3
process 7:"python train.py";thread (7): MainThread 40
process 7:"python -c a;b";thread (7): MainThread;<module> (/home/me/train.py:9);step (/home/me/model.py:4);forward ({TORCH}/nn.py:7) 5
process 7:"python train.py";thread (7): MainThread;<module> (/home/me/train.py:9);step (/home/me/model.py:4) 2
process 7:"python train.py";thread (9): pin_memory;loop (/home/me/threads.py:4) 50
process 7:"python train.py";process 8:"python train.py";thread (8): MainThread;<module> (/home/me/train.py:9);_worker_loop ({TORCH}/worker.py:3);get ({TORCH}/queues.py:1) 6
process 7:"python train.py";process 8:"python train.py";thread (8): MainThread;<module> (/home/me/train.py:9);_worker_loop ({TORCH}/worker.py:3);__getitem__ (/home/me/data.py:2);loads ({json.__file__}:346) 3
process 7:"python train.py";process 9:"python train.py";thread (9): MainThread;<module> (/tmp/ipykernel_1/2.py:9) 1
process 7:"python train.py";process 9:"tracker";thread (9): MainThread;main ({json.__file__}:9) 70
"""  # noqa: E501


def test_lines_of_main_threads_are_added_up_by_the_users_innermost_one_and_by_process():
    found = read_samples(RAW)
    assert found == {
        MAIN: {("/home/me/model.py", 4): 7, ("/home/me/train.py", 1): 3},
        WORKERS: {("", 0): 6, ("/home/me/data.py", 2): 3},  # not what the process was forked in
        OTHERS: {("/tmp/ipykernel_1/2.py", 9): 1},
    }
    seen = Profile(found, 2.0)
    assert next(iter(seen.shares().items())) == (("/home/me/model.py", 4), 0.7)
    assert [sum(seen.shares(where).values()) for where in found] == pytest.approx([1.0] * 3)
    assert all(text in str(seen) for text in ("model.py:4", "70.0%", "waiting", "cell:9", "20 samples"))


def test_a_line_stands_once_and_the_rows_of_each_kind_of_process_add_up():
    stack = 'process 7:"python a.py";thread (7): MainThread;<module> (/home/me/a.py:9);{} (/home/me/a.py:{}) {}\n'
    found = read_samples(stack.format("a", 4, 5) + stack.format("<lambda>", 4, 5))
    assert found[MAIN] == {("/home/me/a.py", 4): 10}
    many = Counter({("/home/me/a.py", i): 400 - i for i in range(1, _MOST + 4)} | {("/home/me/a.py", 99): 1})
    lines = Profile({MAIN: many, WORKERS: many, OTHERS: Counter()}, 2.0)._display().lines
    for where in (MAIN, WORKERS):
        own = [line for line in lines if line[0] == where]
        assert len(own) == _MOST + 1
        assert own[-1][2] == "other lines"
        assert sum(float(share.rstrip("%")) for _, share, *_ in own) == pytest.approx(100, abs=0.5)  # of rounding
    assert {where for where, *_ in lines} == {MAIN, WORKERS}
    few = Profile({MAIN: Counter({("/home/me/a.py", 4): 9999, ("/home/me/a.py", 5): 1})}, 2.0)
    assert [line[1:3] for line in few._display().lines] == [("100.0%", "a.py:4")]


@pytest.mark.parametrize(
    ("pressure", "busy", "own", "counted", "said"),
    [(9.0, 19.0, 4.0, 3.0, "other processes used 1.5 of 2 processors"), (9.0, 19.0, 16.0, 15.0, ""),
     (9.0, 19.0, 1.0, 16.0, ""), (1.0, 19.0, 4.0, 3.0, ""), (None, None, 4.0, 3.0, "")],
)  # fmt: skip
def test_a_busy_machine_is_said_above_the_lines(pressure, busy, own, counted, said, tmp_path, monkeypatch, capsys):
    """py-spy waits for the script, whose time then is in `own`, or it does not; the script has counted its own."""
    readings = [{"monotonic_seconds": 5.0, "cpu_pressure_seconds": 0.0, "busy_seconds": 0.0},
                {"monotonic_seconds": 15.0, "cpu_pressure_seconds": pressure, "busy_seconds": busy}]  # fmt: skip
    monkeypatch.setattr("tclab.timing._profile.conditions", iter(readings).__next__)
    monkeypatch.setattr("os.times", iter([(0.0,) * 5, (9.0, 9.0, own - 1.0, 1.0, 0.0)]).__next__)
    monkeypatch.setattr("tclab.timing._profile.usable_cores", lambda: 2)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "raw").write_text(RAW)
    (tmp_path / "py-spy").write_text(
        f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done; cp "{tmp_path}/raw" "$2"\n'
        f'echo \'{{"processor_seconds": {counted}}}\' > "$7"\n'
    )
    (tmp_path / "py-spy").chmod(0o755)
    main(["profile", __file__])
    shown = " ".join(capsys.readouterr().out.split())
    above, _, below = shown.partition("process share line code")
    assert ("The script ran while other processes" in above) is bool(said)
    assert said in above
    assert ("something waited for a processor 90% of the time). Profile it again" in above) is bool(said)
    assert "other processes used" not in below
    assert "a line counts what it calls, but not your other lines" in above


def test_without_a_script_py_spy_or_its_right_to_read_stacks_a_sentence_says_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"no\.py"):
        timing.profile(tmp_path / "no.py")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(InputError, match=r"pip install '\.\[profile\]'"):
        timing.profile(__file__)
    (tmp_path / "py-spy").write_text("#!/bin/sh\necho 'Permission Denied' >&2\nexit 1\n")
    (tmp_path / "py-spy").chmod(0o755)
    with pytest.raises(InputError, match=r"said: Permission Denied\. Where .* --cap-add=SYS_PTRACE") as error:
        timing.profile(__file__)
    assert "\n" not in str(error.value)


@pytest.mark.clock
def test_a_scripts_lines_have_the_shares_of_its_own_clock_main_and_workers_apart(tmp_path, capfd):
    script = tmp_path / "train.py"
    script.write_text(f"""\
import signal, sys, time
from statistics import median
from time import perf_counter
from torch.utils.data import DataLoader
import beside
{SPIN}
{SPIN.replace("spin", "spinning_too")}
class Data:
    def __len__(self):
        return 24

    def __getitem__(self, index):
        spin(0.2)
        return index

if __name__ == "__main__":
    assert sys.argv[1:] == ["3", "--fast"]
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)  # a timer of its own
    took = []
    for _ in range(20):  # both compute: a sampler that itself waits for a core meets them alike
        begin = perf_counter()
        spin(0.05)
        middle = perf_counter()
        spinning_too(0.1)
        took.append((middle - begin, perf_counter() - middle))
    for batch in DataLoader(Data(), batch_size=2, num_workers=2):
        time.sleep(0.2)
    print("took", *[of(times) for of in (median, sum) for times in zip(*took)])
    raise ValueError("and it ends as it does")
""")
    (tmp_path / "beside.py").touch()
    try:
        seen = timing.profile(script, ["3", "--fast"])
    except InputError as error:
        pytest.skip(str(error))
    said = capfd.readouterr()
    took = [float(seconds) for seconds in re.search("took (.*)", said.out)[1].split()]
    assert "ValueError: and it ends as it does" in said.err
    assert "py-spy" not in said.out + said.err
    text = script.read_text().splitlines()
    spins = [text.index(f"def {name}(seconds):") + 1 for name in ("spin", "spinning_too")]  # each is four lines
    spun = [sum(share for (_, n), share in seen.shares().items() if first <= n < first + 4) for first in spins]
    # a pause of the script is in the sums and not in the medians; of the samples as far as the sampler went on
    least, most = sorted(first / (first + second) for first, second in (took[:2], took[2:]))
    assert least - 0.2 < spun[0] / sum(spun) < most + 0.2
    assert "time.sleep(0.2)" in str(seen)  # for longer, as workers spin, than a sampler may be paused
    in_workers = {n for file, n in seen.shares(WORKERS) if file}
    assert in_workers & {*range(spins[0], spins[0] + 4)}
    assert max(in_workers) <= text.index('if __name__ == "__main__":')  # not what it was forked in
    (loader,) = seen.loaders.by_loader()
    assert loader == "Data at train.py:35"
    assert [row[1:3] for row in seen.loaders.rows()] == [(0, 6), (1, 6)]
