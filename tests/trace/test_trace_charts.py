"""The charts of a trace draw what it has, and say so where there is nothing to draw."""

import pytest

import tclab.trace as trace

alt = pytest.importorskip("altair")
from tclab.lab import charts as drawn  # noqa: E402


def bars(chart):
    """Return panel → bar → value, in the unit of the axis."""
    found = {}
    for row in next(iter(chart.to_dict()["datasets"].values())):
        found.setdefault(row["panel"], {})[row["bar"]] = row["value"]
    return found


def test_the_bars_of_the_main_thread_sum_to_its_wall_time_and_the_title_names_the_file(write_trace, complete):
    report = trace.analyze(write_trace([complete("aten::mm", 0, 10), complete("loss", 12, 5)], "host.json"))
    chart = drawn.result_chart(report)
    assert chart.to_dict()["title"]["subtitle"] == ["host.json · no device event · 0 steps"]
    found = bars(chart)
    assert list(found) == ["main thread, by kind of work", "main thread, by stage of the step"]
    wall = report.categories["self_us"].sum() / 1e3
    assert [sum(panel.values()) for panel in found.values()] == pytest.approx([wall, wall])


def test_the_bars_of_a_device_sum_to_its_span(write_trace, complete):
    kernels = [("gemm", 0, 10), ("ncclKernel", 5, 20), ("gemm", 50, 10)]
    events = [complete(*kernel, "kernel", pid=0, tid=kernel[0]) for kernel in kernels]
    events.append(complete("Memcpy HtoD (Pinned -> Device)", 8, 30, "gpu_memcpy", pid=0, tid=9))
    (panel,) = bars(drawn.result_chart(trace.analyze(write_trace(events)))).values()
    wanted = {"compute": 0.02, "exposed communication": 0.015, "copies and sets": 0.013, "idle": 0.012}  # ms
    assert panel == pytest.approx(wanted)
