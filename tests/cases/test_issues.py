"""Inputs of public issues of other tools, built anew and small, with right values by hand; sources: `README.md`."""

import gzip
import json
import os
import subprocess
import sys
import zipfile

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from tclab import CellGraph, InputError, lab, trace
from tclab.readers import ReadError, biogrid, edge_list, string_links

NOW = 1_615_207_264_505_000  # µs since 1970


def edges_of(network):
    names = network.report.node_names
    return {(names[a], names[b]) for a, b in network.edge_index.T.tolist()}


RING = {("1", "2"), ("2", "3"), ("3", "1")}
TABLES = {  # number in README.md: the text, and the edges from source to target
    2: (" Source , Target\n1, 2\n2, 3\n3, 1\n", RING),
    6: ("0, 1\n1, 2\n2, 0\n", {("0", "1"), ("1", "2"), ("2", "0")}),
    7: ("1 ,2\n2 ,3\n3 ,1\n", RING),
    8: ("http://x/a#b http://y/c#d\nhttp://y/c#d http://z/\n", {("http://x/a#b", "http://y/c#d"),
                                                                ("http://y/c#d", "http://z/")}),
    9: ("source,target\nNA,nan\nnan,None\n", {("NA", "nan"), ("nan", "None")}),
    10: ("A DavidL\nDavidL B\n", {("A", "DavidL"), ("DavidL", "B")}),
    45: ("8278237827\t8237827382738273827382\n15830\t8278237827\n", {("8278237827", "8237827382738273827382"),
                                                                      ("15830", "8278237827")}),
}  # fmt: skip
REFUSED = {
    14: ("(1, 2) (3, 4)\n(3, 4) (5, 6)\n", "which are source and target"),
    15: ("1 2 {}\n2 3 {}\n", "which are source and target"),
    17: ("A B 1\nB C\nC D 2\n", "row 2: Expected 3 columns, got 2"),
}  # fmt: skip


@pytest.mark.parametrize("number", [*TABLES, *REFUSED])
def test_a_table_is_read_or_refused_in_a_sentence(number, tmp_path):
    path = tmp_path / "edges.csv"
    text, right = {**TABLES, **REFUSED}[number]
    path.write_text(text, encoding="utf-8")
    if number in TABLES:
        assert edges_of(edge_list(path, directed=True)) == right
    else:
        with pytest.raises(ReadError, match=right):
            edge_list(path, directed=True)


def test_a_zip_of_several_tables_and_another_format_of_biogrid_are_named(tmp_path):  # 21, 22
    path = tmp_path / "BIOGRID-ORGANISM-x.tab3.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("BIOGRID-ORGANISM-a.tab3.txt", "BIOGRID-ORGANISM-b.tab3.txt"):
            archive.writestr(name, "x")
    with pytest.raises(ReadError, match=r"is a ZIP of 2 files, expected one: BIOGRID-ORGANISM-a"):
        biogrid(path, "AB")
    path = tmp_path / "BIOGRID-ALL-4.4.mitab.txt"
    path.write_text("#ID Interactor A\tID Interactor B\nentrez gene/locuslink:6416\tentrez gene/locuslink:2318\n")
    with pytest.raises(ReadError, match=r"no column '.*' between tabs; the header has|did you mean"):
        biogrid(path, "AB")


def test_transferred_evidence_apart_is_refused_with_the_table_that_combines_it(tmp_path):  # 23
    path = tmp_path / "9606.protein.links.full.v11.0.txt"
    path.write_text("protein1 protein2 coexpression coexpression_transferred\n9606.A 9606.B 200 180\n")
    with pytest.raises(ReadError, match=r"is STRING's full table; take links\.detailed"):
        string_links(path, "AB", channels=["coexpression"])


def event(name, ts, dur, cat="cpu_op", pid=1, tid=1, **args):
    found = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": NOW + ts, "dur": dur}
    return found | {"args": args} if args else found


def run(steps=40, change=lambda i, kernel: kernel):
    """Steps of 100 µs: an operator of 40, a launch within it, a kernel of 60 on stream 7."""
    found = []
    for i in range(steps):
        args = {"correlation": i + 1, "device": 0, "stream": 7}
        kernel = event("gemm", 100 * i + 20, 60, "kernel", 0, 7, **args)
        launch = event("cudaLaunchKernel", 100 * i + 5, 10, "cuda_runtime", correlation=i + 1)
        found += [event("aten::mm", 100 * i, 40), launch, change(i, kernel)]
    return found


def analyzed(tmp_path, events, name="trace.json"):
    path = tmp_path / name
    path.write_text(json.dumps({"traceEvents": events}))
    return trace.analyze(path)


@pytest.mark.parametrize("share", [2, 5, 39])
def test_kernels_at_time_0_are_left_out_and_their_launches_named(tmp_path, share):  # 24
    report = analyzed(tmp_path, run(change=lambda i, k: k | {"ts": 0, "dur": 0} if i % share == 1 else k))
    lost = len(range(1, 40, share))
    times = report.breakdown.iloc[0]
    assert (times["kernels"], times["busy_us"]) == (40 - lost, 60 * (40 - lost))
    assert any(f"{lost} at time 0" in said for said in report.findings)
    assert "launches without kernels" in {*report.trust["pathology"]}


@pytest.mark.parametrize("at", [3, 20, 39])
def test_a_duration_that_runs_over_the_next_kernels_is_named(tmp_path, at):  # 25, 26
    report = analyzed(tmp_path, run(change=lambda i, k: k | {"dur": 1_600_000} if i == at else k))
    found = report.trust.set_index("pathology")["concerned_us"].to_dict()
    assert found["silence"] == 1_600_000 - 100 * (39 - at) - (60 if at < 39 else 20)
    assert at == 39 or found["overlap on a stream"] == 1_600_000 - 100
    assert report.findings[0].startswith("Do not believe these yet: breakdown")
    assert not len(analyzed(tmp_path, run()).trust)


def test_events_that_are_there_twice_overlap(tmp_path):  # 27
    report = analyzed(tmp_path, run() + run())
    assert report.breakdown["busy_us"].item() == 40 * 60
    assert report.trust.set_index("pathology").loc["overlap on a stream", "concerned_us"] == 40 * 60


@pytest.mark.parametrize("events", [1, 3, 40])
def test_two_windows_in_a_file_are_named(tmp_path, events):  # 28
    later = [one | {"ts": one["ts"] + 10_000_000_000} for one in run(events)]
    report = analyzed(tmp_path, run() + later)
    (row,) = report.trust.to_dict("records")
    assert (row["pathology"], row["concerned_us"]) == ("silence", 10_000_000_000 - 100 * 39 - 80)


def test_a_graph_that_launches_many_kernels_loses_none(tmp_path):  # 30
    kernels = [event("k", 20 + 10 * i, 8, "kernel", 0, 7, correlation=1, device=0, stream=7) for i in range(50)]
    report = analyzed(tmp_path, [event("hipGraphLaunch", 0, 10, "cuda_runtime", correlation=1), *kernels])
    assert report.breakdown[["kernels", "busy_us", "idle_us"]].to_numpy().tolist() == [[50, 400, 98]]
    assert not len(report.trust)


DAMAGED = {
    33: b'{"traceEvents": [{"ph": "X", "name": "config.py(0): \xff", "ts": 1, "dur": 1}]}',
    34: b'{"traceEvents": [{"ph": "X", "name": "Library("_test", "IMPL")", "ts": 1, "dur": 1}]}',
}


@pytest.mark.parametrize("number", DAMAGED)
def test_a_damaged_trace_is_a_sentence_with_its_place(number, tmp_path):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(DAMAGED[number]))
    with pytest.raises(trace.TraceError, match=r"trace\.json\.gz: (is not valid JSON at byte \d+|.*UTF-8)"):
        trace.analyze(path)


def test_steps_and_a_rank_that_are_not_there_are_said(tmp_path):  # 37, 38
    report = analyzed(tmp_path, run())
    assert len(report.steps) == 0
    assert report.breakdown["rank"].isna().all()
    assert any("how long a step takes" in said for said in report.findings)


def hetero(edges, nodes=None):
    data = HeteroData()
    data["gene", "binds", "gene"].edge_index = torch.as_tensor(edges)
    if nodes is not None:
        data["gene"].num_nodes = nodes
    return data


EDGES = [[0, 1], [1, 2]]
HETERO = [
    (hetero(torch.zeros(8, 2, dtype=torch.int64), 5), "edge_index"),  # 39
    (hetero([[0, 1], [1, 846]], 845), "846|845"),  # 40
    (hetero(EDGES), r"node type 'gene' of 'binds' is not counted: set data\['gene'\]\.num_nodes"),
    (Data(edge_index=torch.tensor(EDGES), num_nodes=3), "data is a Data, expected a HeteroData"),
]


@pytest.mark.parametrize(("data", "why"), HETERO)
def test_what_is_no_whole_heterodata_is_refused_in_a_sentence(data, why):
    with pytest.raises(InputError, match=why):
        CellGraph.from_hetero_data(data, deleted_type="gene")


def test_weights_in_edge_attr_are_left_out_with_a_word():
    data = hetero(EDGES, 3)
    data["gene", "binds", "gene"].edge_attr = torch.tensor([0.5, 2.0])
    with pytest.warns(UserWarning, match="edge_attr of 'binds' is left out: edge_weight holds"):
        graph = CellGraph.from_hetero_data(data, deleted_type="gene")
    assert graph.networks["binds"].weight is None


def test_a_notebooks_path_may_hold_an_equals_sign_is_not_none_and_a_folder_notebooks_is_the_users(
    tmp_path, monkeypatch
):
    monkeypatch.delenv("TCLAB_RUNS", raising=False)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    assert lab.project_path("runs/a=b") == tmp_path / "notebooks" / "runs" / "a=b"  # 41
    (tmp_path / "notebooks" / "sweep.ipynb").touch()
    assert lab.project_path("runs/x") == tmp_path / "runs" / "x"
    with pytest.raises(InputError, match="a notebook's parameter is None, expected the path of a file or a folder"):
        lab.project_path(None)


def test_an_output_that_cannot_hold_a_letter_gets_a_question_mark(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([event("aten::mm", 0, 10)]))
    code = f"import sys; from tclab.command import main; sys.exit(main(['trace', {str(path)!r}]))"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.returncode, "10 ?s" in done.stdout) == (0, True), done.stderr
