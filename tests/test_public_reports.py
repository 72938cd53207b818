"""Inputs of public reports on other tools, made anew, with their right values by hand: `cases/README.md` lists them."""

import json
import sys
import threading
from types import SimpleNamespace

import pytest
from clock import Clock
from torch.utils.data import DataLoader, IterableDataset

from tclab import InputError, timing, trace
from tclab.readers import edge_list
from tclab.timing import Ledger, loader_times
from tclab.timing import _commands_race as commands
from tclab.timing._profile import read_samples


def event(name, start, duration, cat="cpu_op", pid=1, tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": duration, "args": args}


def mark(name, start, duration):
    return event(name, start, duration, "user_annotation")


def python(name, start, duration):
    return event(name, start, duration, "python_function")


def kernel(number, start, duration, name="gemm"):
    return event(name, start, duration, "kernel", 0, 7, correlation=number, device=0)


def stages(report):
    return {row.stage: row.self_us for row in report.stages.itertuples() if row.self_us}


def ops(report):
    return dict(zip(report.ops["name"], report.ops["self_us"], strict=True))


def doubts(report):
    return dict(zip(report.trust["pathology"], report.trust["events"], strict=True))


XPU = [
    *(event("urEnqueueKernelLaunchWithArgsExp", 10 * i, 5, "xpu_runtime", correlation=i) for i in range(1, 21)),
    event("urQueueFinish", 300, 700, "xpu_runtime", correlation=99),
    *(kernel(i, 10 * i + 8, 9) for i in range(1, 11)),
]
CALLBACK = "[pl][profile][Callback]{}{{'monitor': '{}_loss', 'mode': 'min'}}.{}"
TRACES = {
    "launches of Intel's runtime": (XPU, doubts, {"launches without kernels": 10}),
    "waits of Intel's runtime": (XPU, lambda r: dict(zip(r.syncs["call"], r.syncs["wait_us"], strict=True)),
                                 {"urQueueFinish": 700}),
    "a device whose events have no category": (
        [event("aten::mm", "1700000000000000.1", 50), event("MatMulV2", "1700000000000010.1", 30, "", 2, 3)], doubts,
        {"no categories of torch.profiler": 1}),
    "what callbacks monitor": (
        [mark("[pl][profile][Strategy]One.training_step", 10, 400),
         mark(CALLBACK.format("ModelCheckpoint", "train", "on_train_batch_end"), 650, 300),
         mark(CALLBACK.format("EarlyStopping", "val", "on_validation_end"), 960, 40)],
        stages, {"model_forward": 400, "outside any stage": 190 + 400}),
    "folders of a user's files": (
        [python("subgraph_gnn/train.py(10): main", 0, 1000), python("/home/me/loss study/net.py(5): forward", 100, 300),
         python("dataset_paper/tools.py(9): helper", 500, 300), event("aten::mm", 110, 200),
         python("C:\\me\\data loader\\run.py(3): go", 850, 100)],
        stages, {"model_forward": 300, "outside any stage": 700}),
    "a file's own name": ([python("a/loss.py(10): focal", 0, 100)], stages, {"loss_computation": 100}),
    "torch's files on Windows": ([python("torch\\optim\\adam.py(10): step", 0, 100)], stages, {"optimizer": 100}),
    "Function.apply on the way forward": (
        [python("nn.Module: Net_0", 0, 500), python("torch/autograd/function.py(609): apply", 50, 300),
         event("aten::mm", 70, 200), event("autograd::engine::evaluate_function: FBackward", 600, 90),
         python("torch/autograd/function.py(313): apply", 610, 70)],
        stages, {"model_forward": 500, "backward": 90, "outside any stage": 100}),
    "a mark that had not ended": ([mark("## forward ##", 10.5, 0), event("aten::mm", 20, 500)], doubts,
                                  {"marks without an end": 1}),
    "a short mark in whole µs": ([mark("## forward ##", 10, 0), event("aten::mm", 20, 500)], doubts, {}),
    "kernels named after a collective before them": (
        [kernel(1, 10, 50, "triton_red_fused_all_gather_into_tensor_mean_0"), kernel(2, 70, 50)],
        lambda r: r.breakdown[["compute_us", "communication_us"]].loc[0].to_dict(),
        {"compute_us": 100, "communication_us": 0}),
    "process and thread as floats": ([event("a", 0, 10, pid=1.0, tid=7.0), event("b", 2, 5, pid=1, tid=7)], ops,
                                     {"a": 5, "b": 5}),
    "ends that were cut to whole µs": ([event("a", 0, 10), event("b", 1, 7), event("c", 2, 7)], ops,
                                       {"a": 2, "b": 1, "c": 7}),
    "the outer of two that begin together is written last": ([event("a", 0, 10), event("b", 0, 20)], ops,
                                                             {"a": 10, "b": 10}),
    "a device's mark of a step that holds one kernel": (
        [mark("ProfilerStep#1", 0, 100), event("ProfilerStep#1", 20, 30, "gpu_user_annotation", 0, 7),
         kernel(1, 20, 30), kernel(2, 60, 30)],
        lambda r: r.steps[["wall_us", "busy_us"]].loc[0].to_dict(), {"wall_us": 100, "busy_us": 60}),
}  # fmt: skip


@pytest.mark.parametrize(("events", "told", "right"), TRACES.values(), ids=TRACES)
def test_a_trace(events, told, right, tmp_path):
    path = tmp_path / "trace.json"
    rank = ["3", 3, 3.0, " 3"][len(events) % 4]
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": {"rank": rank}}))
    report = trace.analyze(path)
    assert told(report) == pytest.approx(right)
    assert report.traces[0].rank == 3


TABLES = {
    "Excel's line sep=": ("sep=;\nsource;target\na;b\nb;c\n", [("a", "b"), ("b", "c")]),
    "whole numbers as floats": ("source,target\n1,2.0\n2,1.0\n", "differ only in case, in Unicode or in “.0”"),
    "two kinds of nodes of KONECT": ("% bip unweighted\n1 1\n2 1\n3 3\n", "KONECT's of two kinds of nodes"),
    "one kind of KONECT": ("% asym unweighted\n1 2\n2 3\n", [("1", "2"), ("2", "3")]),
    "a table of Markdown": ("| source | target |\n|---|---|\n| a | b |\n", "a printed table"),
    "a table of psql": (" source | target\n--------+--------\n a      | b\n", "a printed table"),
    "a simple table of reST": ("====== ======\nsource target\n====== ======\na      b\n", "a printed table"),
    "a pointer of Git LFS": ("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 12\n", "git lfs pull"),
    "a page": ("<!DOCTYPE html>\n<html>404</html>\n", "a web page"),
}


@pytest.mark.parametrize(("text", "right"), TABLES.values(), ids=TABLES)
def test_a_table(text, right, tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text(text)
    try:
        network = edge_list(path, sep="|" if "|" in text else None)
    except InputError as error:
        said = str(error)
    else:
        names, said = network.report.node_names, " ".join(network.report.notes)
        found = [tuple(names[i] for i in edge) for edge in network.edge_index.T.tolist()]
    assert right in said if isinstance(right, str) else found == right


def test_the_path_of_a_sampled_line_may_hold_brackets():
    stack = 'process 1:"python";thread (1): MainThread;work (/me/my script (1).py:5)'
    assert read_samples(f"{stack} 7\n")["main"] == {("/me/my script (1).py", 5): 7}


def test_stages_of_a_programs_other_threads_are_left_out_and_those_of_autograds_are_not(monkeypatch):
    clock = Clock().set_in(monkeypatch)

    def prefetch():
        with ledger.stage("transfer"):
            clock.work(0.02)

    with Ledger() as ledger:
        for _ in ledger.steps(range(2)):
            with ledger.stage("forward"):
                other = threading.Thread(target=prefetch)
                other.start(), other.join()
                clock.work(0.03)
    assert ledger.seconds()["forward"] == pytest.approx([0.05, 0.05])
    assert "transfer" not in ledger.seconds()


class Endless(DataLoader):
    """Keeps one iterator, whose workers never start anew, as timm's loader does."""

    def __iter__(self):
        self.kept = self.kept if hasattr(self, "kept") else super().__iter__()
        yield from (next(self.kept) for _ in range(2))


class Forever(IterableDataset):
    def __iter__(self):
        return iter(range(100))


@pytest.mark.parametrize("kind", ["workers from before", "an iterator that is kept"])
def test_a_loader_whose_workers_outlast_a_pass(kind):
    if kind == "workers from before":
        loader = DataLoader(range(4), batch_size=2, num_workers=1, persistent_workers=True)
        plain = [batch.tolist() for batch in loader]
    else:
        loader, plain = Endless(Forever(), batch_size=2, num_workers=1), [[0, 1], [2, 3], [4, 5], [6, 7]]
    with loader_times() as times:
        found = [batch.tolist() for _ in range(len(plain) // 2) for batch in loader]
    assert found == plain
    said = "1 with workers that were there before, of which only the waits are known"
    assert (said in " ".join(str(times).split()), len(times.passes[0].batches)) == (
        (True, 0) if len(plain) == 2 else (False, 4)
    )


def test_a_worktree_without_its_submodules_is_said(tmp_path, monkeypatch):
    run = "-c", "protocol.file.allow=always", "-c", "user.name=a", "-c", "user.email=a@b"
    monkeypatch.chdir(tmp_path)
    for words in ("init -q lib", "-C lib commit -q --allow-empty -m one", "init -q main",
                  "-C main submodule --quiet add ../lib", "-C main commit -q -m two"):  # fmt: skip
        commands._run("git", ["git", *run, *words.split()], tmp_path)
    monkeypatch.chdir(tmp_path / "main")
    monkeypatch.setattr(commands, "race", lambda arms, **_: SimpleNamespace(pairs=arms["nothing"]))
    with pytest.warns(UserWarning, match="base has submodules, which a worktree leaves empty"), pytest.raises(KeyError):
        timing.race_commands([sys.executable, "-c", "0"], base="HEAD", head=".")
