"""Files that nobody should have to read: an error in a sentence, or a report. What no file does is held by the door."""

import gzip
import json

import pytest

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
        ("{}", "is JSON, but no trace: Object missing required field `traceEvents`"),
        ('{"traceEvents": []}', "no event with a duration"),
        ('{"traceEvents": [\n{"ph": "X", "ts": NaN}]}', "invalid character, found 'NaN"),
        ('{"traceEvents": [{"ph": "X", "name": "a', "ends in the middle of a value"),
        ('{"traceEvents": [{"ph": "X", "name": "Library("_test", "IMPL")"}]}', r"is not valid JSON at byte \d+"),
        (b'{"traceEvents": [{"ph": "X", "name": "\xff"}]}', "UTF-8"),
        ('{"traceEvents": [{"ph": "X", "ts": 1e300, "dur": 1}, {"ph": "X", "ts": 7, "dur": 1}]}', "span"),
        ('{"traceEvents": [' + '{"ph":"X","a":' + "[" * 200_000 + "]" * 200_000 + "}]}", "nested too deeply"),
        (gzip.compress(entry().encode(), mtime=0)[:-20], "cut short"),
        *(
            (f"[{entry()},{event}]", r"an event is none of torch.profiler: (Expected|Invalid decimal) .* at `\$\[1\]")
            for event in ("17", entry(ts="soon"), entry(pid=[1]), entry(args=[1]))
        ),
    ],
)
def test_no_trace_gives_a_clear_error(tmp_path, text, message):
    with pytest.raises(trace.TraceError, match=message) as error:
        trace.analyze(put(tmp_path, text))
    assert str(tmp_path) in str(error.value)


def test_a_folder_without_a_trace_is_refused(tmp_path):
    with pytest.raises(trace.TraceError, match=r"has no \.json"):
        trace.analyze(tmp_path)


def test_values_without_a_time_are_left_out_and_counted(tmp_path):
    today = 1_615_207_264_505_000
    strange = [entry(ts=today), entry(dur=-5), entry(dur=None), entry(ts=None), entry(ph="B"), entry()]
    report = trace.analyze(put(tmp_path, "[" + ",".join(strange) + "]"))
    assert report.categories["self_us"].sum() == 10
    left_out = " ".join(report.findings)
    untimed = "2 events whose time or duration is not a number"
    for reason in ("1 events with a negative", untimed, "1 begin and end", "1 at time 0"):
        assert reason in left_out


def test_what_the_format_allows_is_read(tmp_path):
    doubled = '{"ph":"X","ts":5,"ts":0,"dur":1,"dur":10,"name":"a","name":"b","pid":1,"tid":1}'
    inner = '{"a": {"traceEvents": []}, "b": "\\"traceEvents\\": [", "traceEvents": [' + entry() + "]}"
    rank = f'{{"distributedInfo": {{"rank": {10**400}}}, "traceEvents": [{entry(name="} , {" * 1_000)}]}}'
    for text in ("[" + entry() + "]", "[" + entry() + ",", "\ufeff[" + entry() + "]", f"[{doubled}]", inner, rank):
        assert trace.analyze(put(tmp_path, text)).categories["self_us"].sum() == 10


@pytest.mark.parametrize("crossing", [0, 1])
def test_ten_thousand_levels_are_nested_or_cross(tmp_path, crossing):
    depth = 10_000
    rows = (entry(ts=i, dur=3 * depth if crossing else 3 * depth - 2 * i) for i in range(depth))
    report = trace.analyze(put(tmp_path, "[" + ",".join(rows) + "]"))
    assert report.categories["self_us"].sum() == (4 * depth - 1 if crossing else 3 * depth)
