"""Real traces of seven makers: each gives a report, and device times agree with the reference."""

import csv
import json
from pathlib import Path

import pytest

import tclab.trace as trace
from tclab.trace._categories import CATEGORIES

TIMES = ("span_us", "compute_us", "non_compute_us", "idle_us")
REFERENCE = Path(__file__).resolve().parents[3] / "shared" / "reference" / "device_breakdown.csv"
ACCOUNTS = json.loads(Path(__file__).with_name("real_accounts.json").read_text())
ROWS = list(csv.DictReader(REFERENCE.read_text().splitlines())) if REFERENCE.is_file() else []


@pytest.mark.parametrize("row", ROWS, ids=[row["trace"] for row in ROWS])
def test_device_times_agree_with_the_reference(row, real_traces):
    path = real_traces / row["trace"]
    if row["span_us"] == "not JSON":
        with pytest.raises(trace.TraceError, match="not valid JSON at byte 6"):
            trace.analyze(path)
        return
    breakdown = trace.analyze(path).breakdown
    assert len(breakdown) == 1
    for time in TIMES:
        if row["span_us"] == "no device events":
            assert breakdown[time].isna().all()
        else:
            assert breakdown[time].item() == pytest.approx(float(row[time]), abs=0.01)


def test_every_report_adds_up(real_traces):
    for path in sorted(real_traces.glob("*.json.gz")):
        if "BROKEN" in path.name:
            continue
        report = trace.analyze(path)
        main = report.threads[report.threads["is_main"].astype(bool)]
        assert report.categories["self_us"].sum() == pytest.approx(main["self_us"].sum(), abs=1e-6)
        assert report.categories["self_us"].sum() == pytest.approx(report.stages["self_us"].sum(), abs=1e-6)
        assert report.categories["share"].sum() == pytest.approx(1)
        assert list(report.categories["category"]) == list(CATEGORIES)
        for _, thread in report.threads.groupby("thread"):
            assert (thread["self_us"] >= 0).all()
            assert thread["share"].dropna().sum() == pytest.approx(1) or thread["self_us"].sum() == 0
        if len(report.idle_causes):
            assert report.idle_causes["idle_us"].sum() == pytest.approx(report.breakdown["idle_us"].sum(), abs=0.2)
        assert report.findings
        assert all(str(finding).endswith(".") for finding in report.findings)


def accounts_of(path):
    """Return table → sums of a trace's report, in µs but for the bytes of its copies."""
    report = trace.analyze(path)

    def sums(frame, by, what):
        return {key: total for key, total in frame.groupby(by)[what].sum().items() if total} if len(frame) else {}

    return {
        "host": sums(report.categories, "category", "self_us"),
        "stages": sums(report.stages, "stage", "self_us"),
        "idle": sums(report.idle_causes, "stage", "idle_us"),
        "steps": sums(report.steps, "step", "wall_us"),
        "waits": sums(report.syncs, "call", "wait_us"),
        "copied bytes": sums(report.copies, "direction", "bytes"),
    }


@pytest.mark.parametrize("name", ACCOUNTS)
def test_accounts_are_as_they_were_recorded(name, real_traces):
    """Where the reference says nothing: the host's side, as commit 3495985 read it (`real_accounts.json`)."""
    found = accounts_of(real_traces / name)
    assert found.keys() == ACCOUNTS[name].keys()
    for table, recorded in ACCOUNTS[name].items():
        assert found[table] == pytest.approx(recorded, abs=0.06), table


def test_no_rank_and_no_device_are_null(real_traces):
    report = trace.analyze(real_traces / "hta_cpu_only_gloo_rank34.pt.trace.json.gz")
    assert report.breakdown["rank"].item() == 34
    assert report.breakdown["idle_us"].isna().all()
    unanswered = [f for f in report.findings if f.startswith("Not enough in this trace to say whether a device")]
    assert len(unanswered) == 1
    report = trace.analyze(real_traces / "hta_amd_mi250.json.gz")
    assert report.breakdown["rank"].isna().all()
    assert report.copies["bytes"].item() == 5120  # ROCm writes the size on the runtime call


def test_two_ranks_of_a_folder_are_one_run(real_traces, tmp_path):
    for path in real_traces.glob("hta_fsdp_ws128_rank?.json.gz"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    report = trace.analyze(tmp_path)
    assert report.breakdown["rank"].tolist() == [0, 1]
    assert len(report.steps) == 4
    waits = report.collectives.groupby(["collective", "index"])["wait_us"].min()
    assert (waits == 0).all()  # the rank that comes last does not wait
    assert any("only 2 of 128 ranks are in the folder" in finding for finding in report.findings)


def test_files_without_a_rank_are_refused_in_a_folder(write_trace, complete, tmp_path):
    for name in ("a.json", "b.json"):
        path = write_trace([complete("aten::mm", 0, 1)], f"run/{name}")
    with pytest.raises(trace.TraceError, match=r"a\.json does not give its rank, one of 2"):
        trace.analyze(path.parent)
    assert trace.analyze(path).breakdown["rank"].isna().all()


def test_stacks_name_the_line_that_waited(real_traces):
    report = trace.analyze(real_traces / "gpupuzzlers_fusion_stack.json.gz")
    assert report.syncs["site"].iloc[0] == "fusion.py(380): run_example_pt2"
