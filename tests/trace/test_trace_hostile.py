"""Files that nobody should have to read: an error or a report within seconds, never a hang."""

import gzip
import json
import os
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tclab.trace as trace

pytestmark = pytest.mark.clock

SECONDS = 30  # on a machine shared with others; alone each takes a few at most


@pytest.fixture(autouse=True)
def within_seconds():
    before = time.monotonic()
    yield
    assert time.monotonic() - before < SECONDS


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
        ("   \n", "is empty"),
        ("hello", "not valid JSON at byte 0"),
        ("{}", "without a `traceEvents` list"),
        ('{"a": 1, "b": {"traceEvents": []}}', "its keys are: a, b"),
        ("3", "no object with a `traceEvents` list"),
        ('{"traceEvents": 7}', "its keys are: traceEvents"),
        ('{"traceEvents": []}', "no event with a duration"),
        (
            '{"traceEvents": [\n{"ph": "X", "ts": NaN}]}',
            r"line 2, column 19\): invalid character, found 'NaN",
        ),
        ('{"traceEvents": [{"ph": "X", "name": "a', "ends in the middle of a value"),
        (b'{"traceEvents": [{"ph": "\xff"}]}', "cannot be decoded"),
        ('{"traceEvents": [{"ph": "X", "ts": 1e999, "dur": 1}]}', "out of range"),
        ('{"traceEvents": [{"ph": "X", "ts": 1e300, "dur": 1}, {"ph": "X", "ts": 0, "dur": 1}]}', "span"),
        ('{"traceEvents": [' + '{"ph":"X","a":' + "[" * 200_000 + "]" * 200_000 + "}]}", "recursion"),
        ('{"x": ' + "[" * 200_000 + "]" * 200_000 + "}", "recursion"),
        ('{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1}] "x": 1}', "expected ',' or '}'"),
    ],
)
def test_no_trace_gives_a_clear_error(tmp_path, text, message):
    with pytest.raises(trace.TraceError, match=message) as error:
        trace.analyze(put(tmp_path, text))
    assert str(tmp_path) in str(error.value)


def test_the_word_in_a_thousand_wrong_places(tmp_path):
    inner = ",".join(['{"traceEvents": []}'] * 100_000)
    with pytest.raises(trace.TraceError, match="none at the top level"):
        trace.analyze(put(tmp_path, '{"a": [' + inner + "]}"))
    few = '{"a": {"traceEvents": []}, "b": "\\"traceEvents\\": [", "traceEvents": [' + entry() + "]}"
    assert trace.analyze(put(tmp_path, few)).categories["self_us"].sum() == 10


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
                "cat": st.sampled_from(["cpu_op", "kernel", "gpu_memcpy", "cuda_runtime", None, 7]),
                "name": st.one_of(st.text(max_size=5), st.just("[memory]"), st.just("ProfilerStep#1"), st.none()),
                "pid": st.one_of(st.integers(), st.text(max_size=2), st.lists(st.integers(), max_size=1)),
                "tid": st.one_of(st.integers(-5, 5), st.booleans()),
                "ts": st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
                "dur": st.one_of(st.integers(-5, 99), st.floats(0, 1e9), st.none()),
                "args": st.dictionaries(
                    st.sampled_from(["correlation", "bytes", "Total Allocated", "Device Id", "Collective name"]),
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


def test_a_path_that_is_not_there_names_its_neighbours(tmp_path):
    put(tmp_path, "{}", "rank0.json")
    with pytest.raises(trace.TraceError, match=r"does not exist; in its folder are rank0\.json"):
        trace.analyze(tmp_path / "rnak0.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(trace.TraceError, match=r"has no \.json"):
        trace.analyze(tmp_path / "empty")


@pytest.mark.parametrize("kept", [5, 50, 2000])
def test_a_truncated_gzip_says_how_far_it_got(tmp_path, kept):
    events = ",".join(entry(ts=i * 37 % 9973, name=f"op{i * i % 7919}") for i in range(5000))
    whole = gzip.compress(('{"traceEvents": [' + events + "]}").encode())
    with pytest.raises(trace.TraceError, match=r"cut short or damaged after \d+ bytes"):
        trace.analyze(put(tmp_path, whole[:kept], "t.json.gz"))
    damaged = whole[: len(whole) // 2] + b"\0" * 40 + whole[len(whole) // 2 + 40 :]
    with pytest.raises(trace.TraceError):
        trace.analyze(put(tmp_path, damaged, "t.json.gz"))


def test_negative_and_strange_values_are_left_out_and_counted(tmp_path):
    strange = [
        entry(),
        entry(dur=-5),
        entry(ts="soon"),
        entry(dur=None),
        entry(ts=[1, 2]),
        "null",
        "17",
        '["X"]',
        entry(pid=[1], tid={"a": 2}, name=None, cat=5, dur=3, args=[1]),
        entry(args={"correlation": "x", "bytes": {}}, dur=0),
        '{"ph": "B", "name": "b", "ts": 1}',
    ]
    report = trace.analyze(put(tmp_path, '{"traceEvents": [' + ",".join(strange) + "]}"))
    assert report.categories["self_us"].sum() == 10
    left_out = " ".join(f for f in report.findings if f.topic == "reading")
    assert "1 events with a negative duration" in left_out
    assert "3 events whose time or duration is no number" in left_out
    assert "3 entries that are no events" in left_out
    assert "1 begin and end marks" in left_out


def test_duplicate_keys_take_the_last(tmp_path):
    event = '{"ph":"X","ts":5,"ts":0,"dur":1,"dur":8,"name":"a","name":"b","pid":1,"tid":1}'
    report = trace.analyze(put(tmp_path, '{"traceEvents": [' + event + "]}"))
    assert report.ops["name"].tolist() == ["b"]
    assert report.categories["self_us"].sum() == 8


def test_a_bare_list_and_a_byte_order_mark(tmp_path):
    for text in ("[" + entry() + "]", "[" + entry() + ",", "\ufeff[" + entry() + "]"):
        assert trace.analyze(put(tmp_path, text)).categories["self_us"].sum() == 10


@pytest.mark.slow
def test_strings_of_megabytes(tmp_path):
    long = "} , {" * (4 << 20)  # 20 MB of what looks like cuts between events
    events = [entry(name=long), entry(name="b" * (5 << 20), ts=20), entry(ts=40, args={"x": long})]
    report = trace.analyze(put(tmp_path, '{"traceEvents": [' + ",".join(events) + "]}"))
    assert report.categories["self_us"].sum() == 50
    assert report.categories["events"].sum() == 3


def test_broken_far_into_a_large_file(tmp_path):
    events = ",\n".join(entry(ts=i) for i in range(200_000))
    where = events.index("\n", 15 << 20) + 1
    text = '{"traceEvents": [\n' + events[:where] + "{oops},\n" + events[where:] + "]}"
    line = text[: text.index("oops")].count("\n") + 1
    with pytest.raises(trace.TraceError, match=f"line {line}, column 2"):
        trace.analyze(put(tmp_path, text))


@pytest.mark.slow
def test_a_million_tiny_events(tmp_path):
    row = '{{"ph":"X","cat":"cpu_op","name":"op{}","pid":1,"tid":{},"ts":{},"dur":{}}}'
    rows = (row.format(i % 5000, i % 7, i // 7 * 2, i % 3) for i in range(1_000_000))
    report = trace.analyze(put(tmp_path, '{"traceEvents":[' + ",".join(rows) + "]}"))
    assert report.threads["events"].sum() == 1_000_000


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


@pytest.mark.parametrize(
    ("before", "inside", "why"),
    [
        (b"", b" " * (1 << 20), "without the end of an event"),
        (b'{"a": "', b"x" * (1 << 20), "without the end of an event"),
        (b'{"traceEvents": [{"name": "', b"\\\\" * (1 << 20), "without the end of an event"),
        (b'{"traceEvents": [', (entry(x="x" * 1000) + ",").encode() * 1000, "times its size or more, which no trace"),
    ],
)
def test_a_gzip_that_unpacks_to_gigabytes_is_refused_in_little_memory(tmp_path, before, inside, why):
    import resource

    path = put(tmp_path, gzip.compress(before) + gzip.compress(inside) * 1500, "bomb.json.gz")
    with pytest.raises(trace.TraceError, match=why):
        trace.analyze(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 3 << 20  # in kB, of the whole test run


@pytest.mark.parametrize("value", [2**63, 2**64, -(2**70), 10**400])
@pytest.mark.parametrize("name", ["rank", "world_size"])
def test_a_rank_that_no_run_has_is_refused(tmp_path, name, value):
    with pytest.raises(trace.TraceError, match=f"distributedInfo has {name}"):
        trace.analyze(put(tmp_path, f'{{"distributedInfo": {{"{name}": {value}}}, "traceEvents": [{entry()}]}}'))


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "rank0.json")
    with pytest.raises(trace.TraceError, match="is no file"):
        trace.analyze(tmp_path / "rank0.json")
    with pytest.raises(trace.TraceError, match=r"no \.json or"):
        trace.analyze(tmp_path)
    for path in ("no\0path", tmp_path / "no\0path.json"):
        with pytest.raises(trace.TraceError, match="does not exist"):
            trace.analyze(path)
