"""Points of several ranks: rows, labels, failures by name, and nothing left of ranks that are gone."""

import os
import re
import sys
import textwrap
import threading
import time
import warnings

import pytest
from torch import distributed

import tclab
from tclab import InputError, Point
from tclab.sweeps import close_workers
from tclab.sweeps.config import _gpus as gpus
from tclab.sweeps.config._gpus import Gpus, device_of, ranks_of
from tclab.sweeps.execution import _worker_pool as worker_pool
from tclab.sweeps.execution._rank import SignedStore
from tclab.sweeps.execution._rank_group import RankGroup, RankReport, hanging_rank
from tclab.sweeps.execution._worker_pool import WorkerKind, WorkerPool, abort, pool, worker_environment
from tclab.sweeps.store._machine_label import where_measured

pytestmark = pytest.mark.clock


def tiny(**fields):
    return Point(
        **{"scale": 0.02, "batch_size": 2, "networks": 2, "steps": 4, "warmup": 0, "device": "cpu", "ranks": 2,
           "workers": 0, **fields}
    )  # fmt: skip


def of_the_step(frame):
    (row,) = frame[frame["stage"] == "step"].to_dict("records")
    return row


@pytest.fixture(scope="module", autouse=True)
def no_rank_is_left():
    yield
    close_workers()


def processes():
    """Every process, with its command."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                found[int(pid)] = file.read().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            pass
    return found


def sockets():
    """The inode of every socket of this machine that somebody listens on."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if os.path.exists(table):
            with open(table) as file:
                found |= {line.split()[9] for line in file if line.split()[3] == "0A"}
    return found


def sockets_of(pids):
    """Those that some processes have open."""
    links = [os.readlink(f"/proc/{pid}/fd/{fd}") for pid in pids for fd in os.listdir(f"/proc/{pid}/fd")]
    return sockets() & {link[8:-1] for link in links if link.startswith("socket:[")}


def pids_of(ranks):
    return [ranks._torchrun.pid, *(report.pid for report in ranks._reports.values() if report.pid)]


def nothing_is_left(ranks):
    """Whether the ranks and torchrun have ended and their files are gone, within some seconds."""
    assert len(pids_of(ranks)) == 1 + ranks.ranks
    until = time.monotonic() + 10
    while time.monotonic() < until:
        alive = [pid for pid in pids_of(ranks) if "tclab" in processes().get(pid, "")]
        if not alive and not ranks.folder.exists():
            return True
        time.sleep(0.05)
    return False


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks into /proc")


# ---- rows


@pytest.fixture(scope="module")
def rows():
    """A point of two ranks, and one that accumulates, from ranks that were kept warm."""
    first = tclab.run(tiny(warmup=1, workers=1))
    (kept,) = [worker for worker in pool.idle.values() if isinstance(worker, RankGroup)]
    second = tclab.run(tiny(accumulate=2, loss="mle_wass_supcr", compression="fp16", bucket_cap_mb=0.05))
    assert [worker for worker in pool.idle.values() if isinstance(worker, RankGroup)] == [kept]
    return first, second


@pytest.mark.slow
def test_rows_of_ranks_add_up_and_tell_the_exchange(rows):
    frame, _ = rows
    assert set(frame["status"]) == {"ok"}
    assert set(frame["where"]) == {"host", "worker", "rank 0", "rank 1"}
    row = of_the_step(frame)
    assert (row["ranks"], row["backend"], row["device"], row["equivalence"]) == (2, "gloo", "cpu", "passed")
    assert row["samples_per_second"] == pytest.approx(2 * 2 / row["mean_seconds"])
    assert row["gradient_bytes"] == 4 * sum(p.numel() for p in _model(tiny()).parameters())
    assert row["buckets"] >= 1
    assert row["host_accounted"] == pytest.approx(1.0, abs=0.1)  # the worst rank; exact below
    each = {where: own.set_index("stage")["samples_seconds"] for where, own in frame.groupby("where")}
    for where, whole in (("host", "step"), ("rank 0", "whole"), ("rank 1", "whole")):
        stages = each[where].drop([name for name in (whole, "overlapped") if name in each[where]])
        assert {"forward", "backward", "rank_wait", "communication", "optimizer"} <= set(stages.index)
        for step in range(4):
            assert sum(s[step] for s in stages) == pytest.approx(each[where][whole][step], rel=1e-6)
    for step in range(4):  # the slowest rank waited for nobody; an exchange itself takes as long on all
        waits = [each[f"rank {rank}"]["rank_wait"][step] for rank in (0, 1)]
        assert min(waits) == 0.0
        talks = [each[f"rank {rank}"]["communication"][step] for rank in (0, 1)]
        assert talks[0] == pytest.approx(talks[1], rel=1e-3)
        mean = (each["rank 0"]["forward"][step] + each["rank 1"]["forward"][step]) / 2
        assert each["host"]["forward"][step] == pytest.approx(mean)
    late = frame[frame["late_share"].notna()]
    assert late["where"].tolist() == ["rank 0", "rank 1"]
    assert late["late_share"].sum() == pytest.approx(1.0)
    label = "cpu · gloo · 2 ranks"
    assert where_measured(frame).startswith(label)
    assert all(label in sentence for sentence in tclab.lab.findings(frame))
    assert label in str(tclab.lab.charts.throughput(frame).to_dict()["title"])


def _model(point):
    return point.kind.build(point.cell_graph(), "off")


@pytest.mark.slow
def test_gradients_that_add_up_are_exchanged_once_and_the_loss_gathers(rows):
    _, frame = rows
    row = of_the_step(frame)
    assert (row["no_sync"], row["compression"], row["bucket_cap_mb"]) == (True, "fp16", 0.05)
    assert row["buckets"] > 1
    host = frame[frame["where"] == "host"].set_index("stage")["n"]
    assert (host["communication"], host["optimizer"], host["gather"], host["step"]) == (2, 2, 4, 4)


@pytest.mark.slow
@needs_proc
def test_ranks_on_one_machine_listen_to_that_machine_alone(rows):
    (kept,) = [worker for worker in pool.idle.values() if isinstance(worker, RankGroup)]
    listening, addresses = sockets_of(pids_of(kept)), set()
    for version in ("tcp", "tcp6"):
        with open(f"/proc/net/{version}") as file:
            addresses |= {line.split()[1].partition(":")[0] for line in file if line.split()[9] in listening}
    assert addresses
    assert addresses <= {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


def test_what_another_process_writes_for_ranks_is_refused():
    """A request names modules that a rank imports, and whoever reaches the store's port can write to it."""
    store = distributed.HashStore()
    ranks, stranger = SignedStore(store, "secret"), SignedStore(store, "")
    ranks.write("request/0", "a text, µ")
    assert ranks.read("request/0") == "a text, µ"
    stranger.write("request/1", "import this")
    store.set("request/2", "import this")
    store.set("request/3", "")
    store.set("request/4", store.get("request/0"))  # an old one, again
    for number in (1, 2, 3, 4):
        with pytest.raises(RuntimeError, match=f"'request/{number}' in the store of the ranks is not theirs"):
            ranks.read(f"request/{number}")


@pytest.mark.slow
def test_every_other_field_is_run_by_ranks(rows):
    for fields in (
        {"model": "dango", "strategy": "indices", "networks": None},
        {"strategy": "stored_mask", "store": "lmdb", "workers": 1},
        {"loop": "lightning"},
        {"mode": "data"},
        {"mode": "fixed_batch", "static_graph": True},
        {"loss": "mle_wass_supcr", "gather_interval": 2},
        {"compression": "powersgd", "find_unused_parameters": True},
    ):
        row = of_the_step(tclab.run(tiny(steps=2, **fields)))
        assert row["status"] == "ok", fields
        assert all(row[name] == value for name, value in fields.items() if name not in ("model", "networks"))
    stages = set(tclab.run(tiny(steps=2, mode="empty", strategy="gpu_mask_loop"))["stage"])
    assert {"mask", "backward", "communication", "optimizer"} <= stages  # of its one gradient
    assert "forward" not in stages


def test_what_belongs_to_ranks_is_null_for_one_and_refused_in_words(tmp_path):
    alone = tiny(ranks=1, bucket_cap_mb=5, compression="fp16", static_graph=True, gather_interval=3, no_sync=True)
    assert alone == tiny(ranks=1)
    assert alone.exchange() is None
    assert tiny(accumulate=1, no_sync=True).no_sync is None
    assert (tiny().bucket_cap_mb, tiny().compression, tiny().static_graph) == (25.0, "none", False)
    for fields, words in (
        ({"compression": "fp8"}, "unknown compression 'fp8'"),
        ({"bucket_cap_mb": -1}, "bucket_cap_mb is -1"),
        ({"gather_interval": 0}, "gather_interval is 0"),
        ({"static_graph": 1}, "static_graph is 1, expected True or False"),
        ({"find_unused_parameters": True, "static_graph": True}, "expected one"),
        ({"ranks": 0}, "ranks is 0"),
        ({"machines": 2, "ranks": 3}, "ranks is 3, expected as many on each of 2 machines"),
    ):
        with pytest.raises(InputError, match=words):
            tiny(**fields)
    with pytest.raises(InputError, match="2 ranks asked for, and a race is of one process"):
        tclab.sweeps.race_points({"a": tiny(), "b": tiny(ranks=1)}, budget_seconds=1)
    with pytest.raises(InputError, match="2 ranks asked for, and an epoch is of one process"):
        tclab.sweeps.run_epoch(tiny(), 2, tmp_path / "record")


# ---- failures


OWN = """
import os, signal, time
import torch
from tclab import masking

NodeMask = masking.get("node_mask")
second = os.environ.get("RANK") == "1"

class _Fails(NodeMask):
    calls = 0
    def view(self, batch):
        self.calls += 1
        if second and self.calls == 3:
            self.fail()
        return super().view(batch)

@masking.register
class Killed(_Fails):
    name = "rank_killed"
    def fail(self):
        print("a rank's last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

@masking.register
class Greedy(_Fails):
    name = "rank_greedy"
    def fail(self):
        torch.empty(1 << 50)

@masking.register
class Hangs(_Fails):
    name = "rank_hangs"
    def fail(self):
        time.sleep(1000)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_ranks.py").write_text(textwrap.dedent(OWN))
    monkeypatch.syspath_prepend(str(tmp_path))
    import own_ranks  # noqa: F401

    yield
    sys.modules.pop("own_ranks")


FAILURES = {
    "rank_killed": r"failed: rank 1 killed by SIGKILL; its last words: a rank's last words",
    "rank_greedy": r"failed: rank 1 ran out of memory; its last words: .*allocate.*",
    "rank_hangs": r"failed: rank 1 hung: no rank moved for 10 s, and it was at mask.*own_ranks\.py.*",
}


@pytest.mark.slow
@needs_proc
def test_a_rank_that_fails_is_named_with_its_last_words_and_the_sweep_goes_on(own, tmp_path, monkeypatch):
    launches = []

    class Recorded(RankGroup):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            launches.append(self)

    monkeypatch.setattr(worker_pool, "RankGroup", Recorded)
    points = [tiny(strategy=name) for name in (*FAILURES, "node_mask")]
    frame = tclab.sweep(points, results=tmp_path / "rows", hang_seconds=10)
    status = frame[frame["stage"] == "step"].set_index("strategy")["status"].to_dict()
    for strategy, words in FAILURES.items():
        assert re.fullmatch(words, status[strategy], re.DOTALL), status[strategy]
    assert status["node_mask"] == "ok"
    *gone, kept = launches
    assert all(map(nothing_is_left, gone))
    assert kept.alive
    listening = sockets_of(pids_of(kept))
    assert listening
    _stop_ends_all_ranks(kept)
    until = time.monotonic() + 10  # the system closes what a process had open after its command is gone
    while listening & sockets() and time.monotonic() < until:
        time.sleep(0.05)
    assert not listening & sockets()


def _stop_ends_all_ranks(kept):
    found = []
    running_point = threading.Thread(target=lambda: found.append(tclab.run(tiny(steps=100_000, mode="fixed_batch"))))
    running_point.start()
    until = time.monotonic() + 120
    while not (kept in [worker for _, worker in pool.busy] and kept.started) and time.monotonic() < until:
        time.sleep(0.1)
    begin = time.monotonic()
    abort()
    running_point.join(timeout=30)
    took = time.monotonic() - begin
    assert found[0]["status"].tolist() == ["failed: killed by SIGKILL"]
    assert nothing_is_left(kept)
    print(f"stopped in {took:.2f} s")
    assert took < 10  # 2 s on a machine that is not shared


def test_a_hang_is_of_a_rank_here_only_where_another_here_came_farther():
    def hanging(nodes, *entered):
        reports = {rank: RankReport(None, number, "backward") for rank, number in enumerate(entered)}
        return hanging_rank(reports, 20, nodes=nodes)

    words = "no rank moved for 20 s, and"
    alone = f"failed: a rank hung, which one is not known: {words} all were at backward"
    assert hanging(1, 5, 5) == (None, alone)
    elsewhere = f"failed: a rank hung, one here or one on another machine: {words} all here were at backward"
    assert hanging(2, 5) == hanging(2, 5, 5) == (None, elsewhere)
    assert hanging(2, 5, 4) == (1, f"failed: rank 1 hung: {words} it was at backward")
    assert hanging(1, 5) == (0, f"failed: rank 0 hung: {words} it was at backward")


@pytest.mark.slow
def test_a_wrong_exchange_is_a_row_in_words():
    row = of_the_step(tclab.run(tiny(gather_interval=2)))
    assert row["status"].startswith("failed: rank ")
    said = "gather_interval is 2, and the loss 'log_cosh' gathers nothing from other ranks"
    assert said in row["status"]


# ---- which device


def test_gpus_become_device_and_ranks(monkeypatch):
    monkeypatch.setattr(gpus, "listed", list)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert ranks_of("auto") == ("cpu", 1)
    assert [ranks_of(ranks) for ranks in (0, 1, 3)] == [("cpu", 1), ("cpu", 1), ("cpu", 3)]
    assert ranks_of("4") == ranks_of(4, "cpu") == ("cpu", 4)
    for asked in (1, 4):
        with pytest.raises(InputError, match="device is 'cuda', and torch finds no CUDA device here"):
            ranks_of(asked, "cuda")
    with pytest.raises(InputError, match="gpus is 0 and device 'cuda'"):
        ranks_of(0, "cuda")
    (point,) = tclab.grid(scale=0.02, gpus=4, models="dango", strategies="indices", batch_sizes=1, networks=1)
    assert (point.resolved().device, point.ranks, point.resolved().backend) == ("cpu", 4, "gloo")


@pytest.fixture
def gpus_that_answer(monkeypatch):
    """Return a function that gives this machine some GPUs: name → what asking it raises, or None."""

    def given(tried):
        monkeypatch.setattr(gpus, "listed", lambda: list(tried))
        monkeypatch.setattr(worker_pool, "listed", gpus.listed)
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        monkeypatch.setattr(gpus, "_tried", lambda names: tried)
        gpus.gpus.cache_clear()

    yield given
    gpus.gpus.cache_clear()


def test_a_gpu_that_is_dead_is_named_and_the_others_are_used(gpus_that_answer):
    gpus_that_answer({"0": None, "1": "CUDA error: unknown error", "2": None})
    with pytest.warns(UserWarning, match="GPU 1 is listed and does not answer: CUDA error: unknown error"):
        assert gpus.gpus().good == ("0", "2")
    assert ranks_of("auto") == ranks_of(2) == ("cuda", 2)
    for ranks in (1, 2):  # one rank, too, must not be put on the first that is listed
        point = tiny(ranks=ranks, device="cuda", strategy="node_mask")
        assert worker_environment(point, None)["CUDA_VISIBLE_DEVICES"] == "0,2"
    assert device_of("cpu") == "cpu"
    assert device_of("auto") == "cuda"
    with pytest.raises(InputError, match=r"3 ranks need 3 GPUs, and there is 2 GPUs here; GPU 1 is listed"):
        ranks_of(3)


def test_where_no_gpu_answers_that_is_said_before_anything_starts(gpus_that_answer):
    gpus_that_answer(dict.fromkeys(["0", "1"], "CUDA error: unknown error"))
    with pytest.warns(UserWarning, match="GPU 0 is listed and does not answer"):
        gpus.gpus()
    for asked in ("auto", 1):
        with pytest.raises(InputError, match=r"1 rank needs 1 GPU, and there is 0 GPUs here; GPU 0 is listed"):
            ranks_of(asked)
    with pytest.raises(InputError, match="1 rank needs 1 GPU"):
        worker_environment(tiny(ranks=1, device="cuda"), None)
    assert ranks_of(0) == ("cpu", 1)


def test_what_is_warm_on_a_gpu_ends_before_another_kind_of_point_takes_it(monkeypatch):
    class Kept:
        closed, alive = False, True

        def __init__(self, environment=None):
            self.has_read = {}

        def ask(self, request, **options):
            return []

        def close(self):
            self.closed = True

    pool = WorkerPool()
    kinds = WorkerKind(1, "jemalloc", None, "cuda"), WorkerKind(1, "default", None, "cpu")
    pool.idle = kept = {kind: Kept() for kind in kinds}
    first = dict(kept)
    monkeypatch.setattr(worker_pool, "WorkerProcess", Kept)
    options = {"fresh": True, "memory_bytes": None, "hang_seconds": 1.0}
    assert pool.ask(tiny(ranks=1), {}, **options) == []
    assert not any(worker.closed for worker in first.values())
    assert pool.ask(tiny(ranks=1, device="cuda"), {}, **options) == []
    assert [worker.closed for worker in first.values()] == [True, False]
    assert list(pool.idle) == [kinds[1]]


@pytest.mark.slow
def test_gpus_are_tried_in_processes_of_their_own():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tried = gpus._tried(["no-such-gpu"])
    assert tried["no-such-gpu"]
    assert str(Gpus(("0",))) == "1 GPU here"
