"""Ranks train as one process does: the same losses and parameters, however batches are shared out."""

import json
import os
import subprocess

import pytest
import torch
from rank_cases import CASES, DIFFERENT, FEW, LOSSY, train

from tclab import CellGraph, masking
from tclab._torchrun import command
from tclab.perturbation import synthetic_perturbations
from tclab.sweeps.execution._run import threads_of
from tclab.training._loading import Batches


@pytest.fixture(
    scope="module",
    params=[(2, "few"), pytest.param((4, "all"), marks=pytest.mark.slow)],
    ids=lambda given: f"{given[0]} ranks, {given[1]} cases",
)
def trained(request, root, tmp_path_factory):
    """What ranks made of the cases, in one launch."""
    ranks, cases = request.param
    folder = tmp_path_factory.mktemp(f"ranks-{ranks}")
    path = os.pathsep.join([str(root), str(root / "tests")])
    done = subprocess.run(
        command(ranks, folder / "logs", "rank_cases", str(folder), cases),
        env={**os.environ, "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo", "TMPDIR": str(folder)},
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    found = json.loads((folder / "found.json").read_text())
    assert {*found} == {"refused", "gathered", *(FEW if cases == "few" else [*CASES, *LOSSY, *DIFFERENT])}
    return ranks, folder, found


def alone(name, ranks, folder):
    losses, parameters = train({**CASES, **LOSSY, **DIFFERENT}[name], 0, ranks, folder, together=False)
    return torch.tensor(losses, dtype=torch.float64), torch.cat([p.flatten() for p in parameters])


def test_ranks_train_as_one_process_with_batches_of_all(trained, tmp_path):
    ranks, folder, found = trained
    for name in found.keys() & CASES.keys():
        losses, parameters = alone(name, ranks, tmp_path / name.replace(" ", "_"))
        assert found[name]["alike"], name
        torch.testing.assert_close(
            torch.tensor(found[name]["losses"], dtype=torch.float64), losses, rtol=1e-8, atol=1e-10, msg=name
        )
        torch.testing.assert_close(torch.load(folder / f"{name}.pt"), parameters, rtol=1e-6, atol=1e-8, msg=name)


def test_compressed_gradients_are_the_same_on_every_rank_and_nearly_right(trained, tmp_path):
    ranks, folder, found = trained
    for name in found.keys() & LOSSY.keys():
        losses, _ = alone(name, ranks, tmp_path / name)
        assert found[name]["alike"], name
        assert found[name]["losses"] == pytest.approx(losses.tolist(), rel=0.2), name
        if ranks > 1:
            exact = torch.load(folder / "strategy node_mask.pt")
            assert not torch.equal(torch.load(folder / f"{name}.pt"), exact)  # something was compressed


def test_a_buffer_of_ranks_is_not_one_of_a_process(trained, tmp_path):
    """Each rank measures its distances on its own batch and what it remembers; the docstring says so."""
    ranks, _, found = trained
    losses, _ = alone("with a buffer", ranks, tmp_path)
    assert found["with a buffer"]["alike"]
    same = found["with a buffer"]["losses"] == pytest.approx(losses.tolist(), rel=1e-9)
    assert same is (ranks == 1)


def test_ranks_remember_one_anothers_batches_each_gather_interval(trained):
    ranks, _, found = trained
    assert found["gathered"] == [True] * ranks


def test_unused_parameters_are_refused_by_name_and_taken_where_ddp_looks_for_them(trained):
    _, _, found = trained
    assert found["refused"].startswith("idle.weight, idle.bias: no gradient, and DDP waits for one of every parameter")
    assert "find_unused_parameters, or static_graph" in found["refused"]
    for name in ("unused, looked for", "unused, static graph"):
        assert found[name]["alike"]


def test_ranks_load_consecutive_parts_of_every_whole_batch():
    graph = CellGraph.synthetic(0.01).without_metabolism().select(2)
    loading = masking.get("node_mask")(graph)
    for n, size, ranks in ((12, 2, 3), (11, 2, 2), (3, 1, 1), (5, 2, 4)):
        samples = synthetic_perturbations(graph, n)
        shards = [Batches(loading, samples, size, shard=(rank, ranks)) for rank in range(ranks)]
        whole = Batches(loading, samples, size * ranks)
        assert {len(shard) for shard in shards} == {len(whole)} == {n // (size * ranks)}
        for i in range(len(whole)):
            parts = [shard[i].batch.target for shard in shards]
            assert torch.equal(torch.cat(parts), whole[i].batch.target)


def test_ranks_share_the_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    limit = "tclab._limits.cpu_limit_cores"
    monkeypatch.setattr(limit, lambda: None)
    assert [threads_of(ranks) for ranks in (1, 2, 3, 4, 6, 8, 16)] == [8, 4, 2, 2, 1, 1, 1]
    monkeypatch.setattr(limit, lambda: 2.0)
    assert [threads_of(ranks) for ranks in (1, 2, 4)] == [2, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert threads_of(1) == 1
