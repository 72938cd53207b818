"""Self time: random events, well nested and badly, against first principles."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tclab.trace as trace
from tclab.trace._nesting import nest

tangles = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)), min_size=1, max_size=25)


def columns(rows):
    start, duration = np.array(rows, dtype=np.int64).T
    return start, duration, np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)


@given(tangles)
def test_any_tangle_counts_each_moment_once_for_the_event_that_began_last_and_lies_in_the_one_before(rows):
    """By the slow way: in the order of their begins, of equals the outer one first, some run at each moment."""
    order = sorted(range(len(rows)), key=lambda i: (rows[i][0], -rows[i][1], i))
    owned, parents = [0] * len(rows), [-1] * len(rows)
    for moment in range(max(map(sum, rows))):
        running = [i for i in order if rows[i][0] <= moment < sum(rows[i])]
        if running:
            owned[running[-1]] += 1
    for place, i in enumerate(order):
        running = [before for before in order[:place] if rows[i][0] < sum(rows[before])]
        parents[i] = running[-1] if running else -1
    found = nest(*columns(rows))
    assert found.spent().tolist() == owned
    assert found.parent.tolist() == parents
    stretches = np.argsort(found.start)
    assert (found.end[stretches][:-1] <= found.start[stretches][1:]).all()


@given(tangles, st.sampled_from([1.0, 1000.0]), st.sampled_from([0, 1_700_000_000_000_000]))
def test_report_does_not_depend_on_order_units_or_origin_and_threads_do_not_touch(write_trace, rows, unit, origin):
    names = ["aten::mm", "loss", "autograd::engine", "Optimizer.step"]

    def events(scale, shift):
        return [
            {"ph": "X", "cat": "cpu_op", "name": names[i % 4], "pid": 1, "tid": 1 + i // 4 % 2}
            | {"ts": shift + s * scale, "dur": d * scale}
            for i, (s, d) in enumerate(rows)
        ]

    plain = trace.analyze(write_trace(events(1, 0)))
    changed = events(unit, origin)
    random.Random(len(rows)).shuffle(changed)
    other = trace.analyze(write_trace(changed, "other.json"))
    for table, by in (("threads", ["thread", "category"]), ("stages", "stage")):
        before, after = (getattr(report, table).set_index(by)["self_us"].sort_index() for report in (plain, other))
        assert np.allclose(after, before * unit, atol=1e-9)
    assert (other.categories["events"] == plain.categories["events"]).all()
    assert plain.threads["events"].sum() == len(rows)
    for thread, took in plain.threads.groupby("thread")["self_us"].sum().items():
        own = [row for i, row in enumerate(rows) if thread == f"1 {1 + i // 4 % 2}"]
        assert took == pytest.approx(max(s + d for s, d in own) - min(s for s, d in own))


@given(tangles)
def test_device_times_are_unions(write_trace, rows):
    kinds = ["Kernel", "kernel", "gpu_memcpy", "Memset"]
    names = ["gemm", "ncclDevKernel_AllReduce", "Memcpy HtoD (Pageable -> Device)", "Memset (Device)"]
    events = [
        {"ph": "X", "cat": kinds[i % 4], "name": names[i % 4], "pid": 0, "tid": i % 3, "ts": s, "dur": d}
        for i, (s, d) in enumerate(rows)
    ]
    row = trace.analyze(write_trace(events)).breakdown.iloc[0]
    busy = {t for s, d in rows for t in range(s, s + d)}
    compute = {t for s, d in rows[::4] for t in range(s, s + d)}
    talk = {t for s, d in rows[1::4] for t in range(s, s + d)}
    span = max(s + d for s, d in rows) - min(s for s, d in rows)
    assert row["span_us"] == span
    assert row["compute_us"] == len(compute)
    assert row["non_compute_us"] == len(busy) - len(compute)
    assert row["idle_us"] == span - len(busy)
    assert row["communication_us"] == len(talk)
    assert row["exposed_communication_us"] == len(talk - compute)
