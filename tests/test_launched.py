"""Points of several ranks: rows, labels, failures by name, and nothing left of ranks that are gone."""

import os
import sys
from unittest.mock import Mock, call

import psutil
import pytest
from orphans import MARK, marked
from test_sweep import of_the_step
from test_sweep import tiny as of_one_rank

import tclab
from tclab import InputError
from tclab.sweeps import _run, _worker
from tclab.sweeps._measure import setup
from tclab.sweeps._point_inputs import resolve
from tclab.sweeps._rows import where_measured


def tiny(**fields):
    return of_one_rank(**{"scale": 0.02, "steps": 4, "ranks": 2, "workers": 0, **fields})


_of_others = set()  # a notebook's kernel may keep ranks warm while these tests run


@pytest.fixture(scope="module", autouse=True)
def no_rank_is_left():
    _run.close_workers()
    _of_others.update(processes_of_ranks())
    yield
    _run.close_workers()


def processes_of_ranks():
    """The processes of two ranks, and of their torchrun."""
    ours = {pid for pid, command in marked(os.environ[MARK]).items() if "_worker 2 " in command}
    return ours - _of_others


def kept_ranks():
    (kept,) = [worker for kind, worker in _run._idle.items() if kind.ranks == 2]
    return kept


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks into /proc")


# ---- rows


@pytest.fixture(scope="module")
def rows():
    """A point of two ranks, and one that accumulates, from ranks that were kept warm."""
    first = tclab.run(tiny(warmup=1, workers=1))
    kept = kept_ranks()
    second = tclab.run(tiny(accumulate=2, loss="mle_wass_supcr", ddp="compression:fp16,bucket_cap_mb:0.05"))
    assert kept_ranks() is kept
    return first, second


@pytest.mark.slow
def test_rows_of_ranks_add_up_and_tell_the_exchange(rows):
    frame, accumulated = rows
    assert set(frame["status"]) == {"ok"}
    assert set(frame["where"]) == {"host", "worker", "rank 0", "rank 1"}
    row = of_the_step(frame)
    assert (row["ranks"], row["backend"], row["device"], row["equivalence"]) == (2, "gloo", "cpu", "passed")
    assert row["samples_per_second"] == pytest.approx(2 * 2 / row["mean_seconds"])
    each = {where: own.set_index("stage")["samples_seconds"] for where, own in frame.groupby("where")}
    for where, whole in (("host", "step"), ("rank 0", "whole"), ("rank 1", "whole")):
        stages = each[where].drop(whole)
        for step in range(4):
            assert sum(s[step] for s in stages) == pytest.approx(each[where][whole][step], rel=1e-6)
    for step in range(4):  # the slowest rank waited for nobody; an exchange itself takes as long on all
        waits, talks = (
            [each[f"rank {rank}"][stage][step] for rank in (0, 1)] for stage in ("rank_wait", "communication")
        )
        assert min(waits) == 0.0
        assert talks[0] == pytest.approx(talks[1], rel=1e-3)
    assert where_measured(frame).startswith("cpu · gloo · 2 ranks")
    # gradients that add up are exchanged once, and the loss gathers each time
    row = of_the_step(accumulated)
    assert row["ddp"] == "bucket_cap_mb:0.05,compression:fp16"
    n = accumulated[accumulated["where"] == "host"].set_index("stage")["n"]
    assert (n["communication"], n["optimizer"], n["gather"], n["step"]) == (2, 2, 4, 4)


@pytest.mark.slow
@needs_proc
def test_ranks_on_one_machine_listen_to_that_machine_alone(rows):
    connections = [one for pid in processes_of_ranks() for one in psutil.Process(pid).net_connections("inet")]
    listening = {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}
    assert listening
    assert listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@pytest.mark.slow
def test_every_other_field_is_run_by_ranks(rows):
    for fields in (
        {"model": "dango", "strategy": "indices", "networks": None},
        {"strategy": "stored_mask", "store": "lmdb", "workers": 1, "loop": "lightning"},
        {"mode": "data"},
        {"mode": "fixed_batch", "ddp": "static_graph:true"},
        {"loss": "mle_wass_supcr", "ddp": "gather_interval:2"},
        {"mode": "empty", "strategy": "gpu_mask_loop"},
        {"ddp": "compression:bf16,find_unused_parameters:true"},
    ):
        row = of_the_step(tclab.run(tiny(steps=2, **fields)))
        assert row["status"] == "ok", fields
        assert all(row[name] == value for name, value in fields.items() if name not in ("model", "networks"))


def test_what_ranks_cannot_do_is_refused_in_words(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="2 ranks asked for, and a race is of one process"):
        tclab.sweeps.race_points({"a": tiny(), "b": tiny(ranks=1)}, budget_seconds=1)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(InputError, match="this process is not a rank: torchrun starts"):
        tclab.sweeps.run_as_rank(tiny())
    monkeypatch.setattr("tclab.sweeps._point.gpu_count", lambda: 3)
    with pytest.raises(InputError, match="4 ranks need 4 GPUs, and this machine has 3 GPUs; expected fewer"):
        _run.ask(tiny(ranks=4, device="cuda"), {})


def test_options_that_a_loss_does_not_have_are_refused_and_a_rank_that_refuses_is_named(monkeypatch):
    words = "gather_interval is 2, and the loss 'log_cosh' gathers nothing from other ranks"
    with (
        pytest.raises(InputError, match=words) as refused,
        setup(resolve(tiny(ddp="gather_interval:2")), 2),
    ):
        pass
    parent = Mock()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("os._exit", parent.ended)
    _worker._fail(parent, refused.value)
    assert parent.mock_calls == [call.send(failed=f"failed: rank 1: {words}; expected None"), call.ended(1)]


# ---- failures


OWN = """
import os, signal, time
import torch
from tclab import masking

NodeMask = masking.get("node_mask")

def killed():
    print("a rank's last words", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

def fails(name, fail):
    class Fails(NodeMask):
        calls = 0
        def view(self, batch):
            self.calls += 1
            if os.environ.get("RANK") == "1" and self.calls == 3:
                fail()
            return super().view(batch)
    Fails.name = name
    masking.register(Fails)

fails("rank_killed", killed)
fails("rank_greedy", lambda: torch.empty(1 << 50))
fails("rank_hangs", lambda: time.sleep(1000))
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_ranks.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    import own_ranks  # noqa: F401

    yield
    sys.modules.pop("own_ranks")


FAILURES = {
    "rank_killed": "failed: rank 1 killed by SIGKILL; its last words: a rank's last words",
    "rank_greedy": "oom",
}


@pytest.mark.slow
@needs_proc
def test_a_rank_that_fails_is_named_and_the_sweep_goes_on(own, tmp_path):
    frame = tclab.sweep([tiny(strategy=name) for name in (*FAILURES, "node_mask")], results=tmp_path / "rows")
    status = frame[frame["stage"] == "step"].set_index("strategy")["status"].to_dict()
    assert status == {**FAILURES, "node_mask": "ok"}
    kept = kept_ranks()
    assert len(processes_of_ranks()) == 3  # of those that failed none is left
    # the ranks are warm: all of the limit is the point's
    (hung,) = tclab.run(tiny(strategy="rank_hangs"), hang_seconds=3)["status"]
    assert hung == "failed: the setting was not through after 3 s, and its process was ended"
    assert not processes_of_ranks()
    assert not kept.temporary.path.exists()
