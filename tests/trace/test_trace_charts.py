"""Every chart draws what it is given, and says so where there is nothing to draw."""

import pytest

import tclab.trace as trace

alt = pytest.importorskip("altair")
from tclab.lab import charts as drawn  # noqa: E402


def charts(report):
    return {
        "categories": drawn.trace_chart(report, "categories"),
        "stages": drawn.trace_chart(report, "stages"),
        "device": drawn.trace_chart(report, "breakdown"),
        "timeline": drawn.trace_timeline(report.traces[0]),
        "compared": drawn.result_chart(trace.compare(report, report)),
    }


def test_every_chart_of_a_host_and_of_a_device(write_trace, complete):
    host = trace.analyze(write_trace([complete("aten::mm", 0, 10), complete("loss", 12, 5)], "host.json"))
    device = trace.analyze(
        write_trace([complete("gemm", 5 * i, 3, "kernel", pid=0, tid=7) for i in range(4)], "device.json")
    )
    for name, chart in charts(host).items():
        assert chart.to_dict()["$schema"], name
        is_empty = "mark" in chart.to_dict() and chart.to_dict()["mark"]["type"] == "text"
        assert is_empty == (name == "device")
    for name, chart in charts(device).items():
        assert chart.to_dict()["$schema"], name


def test_a_chart_names_its_file(write_trace, complete):
    report = trace.analyze(write_trace([complete("aten::mm", 0, 10)], "host.json"))
    assert drawn.trace_chart(report, "stages").to_dict()["title"]["subtitle"] == [
        "host.json · no device event · 0 steps"
    ]


def test_a_track_whose_events_are_all_deep_is_drawn(write_trace, complete):
    """A kernel with the process and thread of thirty host events around it is a track of its own, at lane 30."""
    events = [complete(f"op {depth}", depth, 100 - 2 * depth) for depth in range(30)]
    report = trace.analyze(write_trace([*events, complete("gemm", 40, 5, "kernel")]))
    (rows,) = drawn.trace_timeline(report.traces[0]).to_dict()["datasets"].values()
    assert list(dict.fromkeys(row["panel"] for row in rows)) == ["main thread (1)", "device 1, stream 1"]
    assert {row["label"] for row in rows if row["panel"].startswith("device")} == {"gemm"}
    assert all(row["label"].startswith(row["name"]) for row in rows)  # a name that has no room is left out
