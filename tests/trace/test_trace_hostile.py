"""Files that nobody should have to read: an error in a sentence, or a report. What no file does is held by the door."""

import gzip
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tclab.trace as trace


def put(tmp_path, text, name="trace.json"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def entry(**changes):
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 10}
    return json.dumps(event | changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("hello", "not valid JSON at byte 0"),
        ("{}", "is JSON, but no trace: Object missing required field `traceEvents`"),
        ('{"a": 1, "b": {"traceEvents": []}}', "missing required field `traceEvents`"),
        ("3", "Expected `object . array`, got `int`"),
        ('{"traceEvents": 7}', "Expected `array`, got `int`"),
        ('{"traceEvents": []}', "no event with a duration"),
        ('{"traceEvents": [\n{"ph": "X", "ts": NaN}]}', r"line 2, column 19\): invalid character, found 'NaN"),
        ('{"traceEvents": [{"ph": "X", "name": "a', "ends in the middle of a value"),
        (b'{"traceEvents": [{"ph": "\xff"}]}', "is not UTF-8"),
        ('{"traceEvents": [{"ph": "X", "ts": 1e999, "dur": 1}]}', "out of range"),
        ('{"traceEvents": [{"ph": "X", "ts": 1e300, "dur": 1}, {"ph": "X", "ts": 0, "dur": 1}]}', "span"),
        ('{"traceEvents": [' + '{"ph":"X","a":' + "[" * 200_000 + "]" * 200_000 + "}]}", "nested too deeply"),
        ('{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1}] "x": 1}', "expected ',' or '}'"),
        (gzip.compress(entry().encode(), mtime=0)[:-20], "cut short"),
        (gzip.compress(b'{"traceEvents": [') + gzip.compress((entry() + ",").encode() * 9000) * 500, "times its size"),
    ],
)
def test_no_trace_gives_a_clear_error(tmp_path, text, message):
    with pytest.raises(trace.TraceError, match=message) as error:
        trace.analyze(put(tmp_path, text))
    assert str(tmp_path) in str(error.value)


def test_what_is_no_file_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    put(tmp_path, "{}", "rank0.json")
    os.mkfifo(tmp_path / "fifo.json")
    for name, message in {
        "rnak0.json": r"no such file; did you mean 'rank0\.json'",
        "empty": r"has no \.json",
        "fifo.json": "neither a file nor a folder",
        "no\0path": "is no path",
    }.items():
        with pytest.raises(trace.TraceError, match=message):
            trace.analyze(tmp_path / name)


def test_broken_far_into_a_large_file(tmp_path):
    events = ",\n".join(entry(ts=i) for i in range(30_000))
    where = events.index("\n", 2 << 20) + 1
    text = '{"traceEvents": [\n' + events[:where] + "{oops},\n" + events[where:] + "]}"
    line = text[: text.index("oops")].count("\n") + 1
    with pytest.raises(trace.TraceError, match=f"line {line}, column 2"):
        trace.analyze(put(tmp_path, text))


SOUND = '{"schemaVersion": 1, "traceEvents": [' + ", ".join(
    entry(ts=i, dur=3, cat=cat, args={"correlation": i, "bytes": 8})
    for i, cat in enumerate(("cpu_op", "kernel", "cuda_runtime", "gpu_memcpy", "python_function"))
)


@settings(max_examples=5 * settings.default.max_examples)
@given(st.lists(st.tuples(st.integers(0, len(SOUND)), st.binary(max_size=3), st.integers(0, 3)), max_size=4))
def test_any_damage_gives_a_report_or_an_error(tmp_path, damage):
    text = bytearray(SOUND.encode() + b"]}")
    for place, put_in, taken in damage:
        text[place : place + taken] = put_in
    try:
        report = trace.analyze(put(tmp_path, bytes(text)))
    except trace.TraceError:
        return
    assert report.findings


@settings(max_examples=3 * settings.default.max_examples)
@given(
    st.lists(
        st.fixed_dictionaries(
            {"ph": st.sampled_from(["X", "X", "X", "i", "f", 3])},
            optional={
                "cat": st.sampled_from(["cpu_op", "kernel", "gpu_memcpy", "cuda_runtime", "mine", None, 7]),
                "name": st.one_of(st.text(max_size=5), st.just("[memory]"), st.just("ProfilerStep#1"), st.none()),
                "pid": st.one_of(st.integers(), st.text(max_size=2), st.lists(st.integers(), max_size=1)),
                "tid": st.one_of(st.integers(-5, 5), st.booleans()),
                "ts": st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
                "dur": st.one_of(st.integers(-5, 99), st.floats(0, 1e9), st.none()),
                "args": st.dictionaries(
                    st.sampled_from(["correlation", "bytes", "device", "Total Allocated", "Collective name"]),
                    st.one_of(st.integers(), st.text(max_size=3), st.floats(allow_nan=False), st.none()),
                ),
            },
        ),
        max_size=12,
    )
)
def test_any_event_gives_a_report_or_an_error(tmp_path, events):
    path = put(tmp_path, json.dumps({"traceEvents": events}, allow_nan=True))
    try:
        report = trace.analyze(path)
    except trace.TraceError:
        return
    assert report.findings


def test_values_without_a_time_are_left_out_and_counted(tmp_path):
    strange = [
        entry(),
        entry(dur=-5),
        entry(dur=None),
        entry(ts=None),
        entry(name=None, cat=None, dur=3),
        entry(args={"correlation": "x", "bytes": "8", "size": {}}, dur=0),
        '{"ph": "B", "name": "b", "ts": 1}',
    ]
    report = trace.analyze(put(tmp_path, '{"traceEvents": [' + ",".join(strange) + "]}"))
    assert report.categories["self_us"].sum() == 10
    left_out = " ".join(finding for finding in report.findings if finding.startswith("Left out"))
    for reason in (
        "1 events with a negative duration",
        "2 events whose time or duration is no number",
        "1 begin and end",
    ):
        assert reason in left_out


@pytest.mark.parametrize("event", ["17", '["X"]', entry(ts="soon"), entry(pid=[1]), entry(args=[1]), entry(name=5)])
def test_an_event_of_another_shape_is_named(tmp_path, event):
    text = '{"traceEvents": [' + ",".join([entry(), event]) + "]}"
    with pytest.raises(trace.TraceError, match=r"an event is none of torch.profiler: Expected .* at `\$\[1\]"):
        trace.analyze(put(tmp_path, text))


def test_what_the_format_allows_is_read(tmp_path):
    doubled = '{"ph":"X","ts":5,"ts":0,"dur":1,"dur":10,"name":"a","name":"b","pid":1,"tid":1}'
    inner = '{"a": {"traceEvents": []}, "b": "\\"traceEvents\\": [", "traceEvents": [' + entry() + "]}"
    long = "} , {" * 100_000  # what looks like the end of an event
    named = '{"traceEvents": [' + entry(name=long, args={"x": long}) + "]}"
    for text in ("[" + entry() + "]", "[" + entry() + ",", "\ufeff[" + entry() + "]", f"[{doubled}]", inner, named):
        assert trace.analyze(put(tmp_path, text)).categories["self_us"].sum() == 10


@pytest.mark.slow
def test_a_hundred_thousand_names_and_threads(tmp_path):
    row = '{{"ph":"X","cat":"c{}","name":"op{}","pid":{},"tid":"t","ts":{},"dur":2}}'
    rows = (row.format(i % 300, i, i % 2000, i) for i in range(100_000))
    report = trace.analyze(put(tmp_path, '{"traceEvents":[' + ",".join(rows) + "]}"))
    assert len(report.ops) == 100_000


@pytest.mark.parametrize("shift", [0, 1], ids=["nested", "crossing"])
def test_a_hundred_thousand_levels(tmp_path, shift):
    depth = 100_000
    row = '{{"ph":"X","cat":"cpu_op","name":"f","pid":1,"tid":1,"ts":{},"dur":{}}}'
    # nested: each ends before the one around it; crossing: each ends after it
    rows = (row.format(i, 3 * depth if shift else 3 * depth - 2 * i) for i in range(depth))
    report = trace.analyze(put(tmp_path, '{"traceEvents":[' + ",".join(rows) + "]}"))
    assert report.categories["self_us"].sum() == (4 * depth - 1 if shift else 3 * depth)


@pytest.mark.parametrize("value", [2**63, -(2**70), 10**400])
@pytest.mark.parametrize("name", ["rank", "world_size"])
def test_a_rank_that_no_run_has_is_not_known(tmp_path, name, value):
    text = f'{{"distributedInfo": {{"{name}": {value}}}, "traceEvents": [{entry()}]}}'
    assert trace.analyze(put(tmp_path, text)).settings[name].isna().all()
