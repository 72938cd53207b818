"""What holds memory at the peak: of snapshots made to torch's format, damaged and hostile ones, and of a real run."""

import contextlib
import json
import os
import pickle
import random
import struct
import subprocess
import sys

import pytest
import vl_convert

import tclab.trace as trace
from tclab import lab
from tclab.trace import _snapshot

OWN = {"filename": "/home/me/project/model.py", "line": 212, "name": "forward"}
OTHER = {"filename": "/home/me/project/train.py", "line": 40, "name": "step"}
TORCH = {"filename": "/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py", "line": 125, "name": "forward"}
ADAM = {"filename": "/venv/lib/python3.12/site-packages/torch/optim/adam.py", "line": 90, "name": "_init_group"}
ENGINE = {"filename": "??", "line": 0, "name": "torch::autograd::Engine::thread_main"}
MEBIBYTE = 1 << 20


def event(action, address, mebibytes, at, *frames):
    fields = {"action": action, "addr": address, "size": mebibytes * MEBIBYTE, "stream": 0, "time_us": at}
    return {**fields, "frames": list(frames)}


def snapshot():
    """Peak at the third allocation: 30 by model.py, 8 by the optimizer, 5 from before, freed later, and 2 that stay."""
    stack = [TORCH, OWN, OTHER]  # shared with a block, and by two events, as torch shares them
    events = [
        event("segment_alloc", 1, 40, 99, OWN),
        {**event("alloc", 1, 10, 100), "frames": stack},
        event("alloc", 2, 8, 110, ADAM, OTHER),
        {**event("alloc", 3, 20, 120), "frames": stack},
        event("free_requested", 3, 20, 130, OTHER),
        event("free_completed", 3, 20, 131, OTHER),
        event("free_completed", 77, 5, 140, OTHER),
        event("alloc", 4, 6, 150, ENGINE),
        event("free_completed", 4, 6, 160),
    ]
    blocks = [
        {"address": 1, "size": 10 * MEBIBYTE, "state": "active_allocated", "frames": stack},
        {"address": 2, "size": 8 * MEBIBYTE, "state": "active_allocated", "frames": [ADAM, OTHER]},
        {"address": 900, "size": 2 * MEBIBYTE, "state": "active_allocated", "frames": [OTHER]},
        {"address": 950, "size": 3 * MEBIBYTE, "state": "inactive", "frames": []},
    ]
    segment = {"device": 1, "address": 1, "total_size": 50 * MEBIBYTE, "blocks": blocks}
    return {"segments": [segment], "device_traces": [[], events], "allocator_settings": {"rate": 0.5, "on": True}}


def written(folder, made, kind):
    path = folder / f"snapshot.{kind}"
    if kind == "json":
        path.write_text(json.dumps(made))
    else:
        path.write_bytes(pickle.dumps(made, protocol=int(kind)))
    return path


@pytest.mark.parametrize("kind", ["2", "3", "4", "5", "json"])
def test_the_peaks_owners_are_named_by_stage_and_line(kind, tmp_path):
    found = trace.memory_owners(written(tmp_path, snapshot(), kind))
    (peak,) = found.peaks.to_dict("records")
    assert peak == {"device": "device 1", "time_us": 21, "bytes": 45 * MEBIBYTE}
    rows = {(r["stage"], r["line"]): (r["blocks"], r["bytes"] / MEBIBYTE) for r in found.owners.to_dict("records")}
    outside = next(stage for stage, line in rows if line == "held before the record began")
    assert rows == {
        ("model_forward", "model.py:212 forward"): (2, 30),
        ("optimizer", "train.py:40 step"): (1, 8),
        (outside, "held before the record began"): (0, 5),
        (outside, "train.py:40 step"): (1, 2),
    }
    assert found.owners["share"].sum() == pytest.approx(1)
    assert [held / MEBIBYTE for held in found.timeline["bytes"]] == [17, 25, 45, 25, 20, 26, 20]
    assert "device 1 held at most 47" in str(found)


@pytest.mark.parametrize("protocol", [4, 2])
def test_every_event_is_as_pickle_reads_it_wherever_the_file_is_cut(protocol, tmp_path, monkeypatch):
    rng = random.Random(0)
    frames = [{"filename": f"/home/me/file{n}.py", "line": n, "name": f"function {n}"} for n in range(300)]
    stacks = [[rng.choice(frames) for _ in range(rng.randrange(6))] for _ in range(20)]
    words = ["alloc", "free_completed", "segment_alloc"]

    def drawn(number):
        stack = rng.choice(stacks)  # torch has a list of its own for each event, or one for several
        size = rng.choice([0, 7, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**47 + 1, -1, -(2**40)])
        fields = {"action": rng.choice(words), "addr": rng.randrange(2**48), "size": size, "stream": rng.randrange(3)}
        fields |= {"time_us": 10**15 + number, "frames": rng.choice([stack, list(stack)])}
        context = rng.choice(["N/A", f"{number} h.e}}u", "é" * rng.randrange(60), None, True])
        return fields | {"compile_context": context} | ({"device_free": 5} if rng.random() < 0.05 else {})

    events = [[drawn(number) for number in range(1500)] for _ in range(2)]
    blocks = [{"address": 1, "size": 1, "state": "inactive", "frames": stack} for stack in stacks[:5]]
    made = {"frames": frames, "segments": [{"device": 0, "blocks": blocks}], "device_traces": events}
    monkeypatch.setattr(_snapshot, "PIECE", 1 << 12)
    found = [[], []]
    _snapshot.read_snapshot(written(tmp_path, made, str(protocol)), lambda at, event: found[at].append(event))
    for theirs, ours in zip(events, found, strict=True):
        assert ours == [{**one, "frames": tuple(_snapshot._frame(frame) for frame in one["frames"])} for one in theirs]


def test_one_event_by_itself_and_many_devices(tmp_path):
    made = {"segments": [], "device_traces": [[event("alloc", 1, 3, 5, OWN)], [], [event("alloc", 1, 4, 6, OTHER)]]}
    found = trace.memory_owners(written(tmp_path, made, "4"))
    assert found.peaks["device"].tolist() == ["device 0", "device 2"]
    assert found.owners["bytes"].tolist() == [3 * MEBIBYTE, 4 * MEBIBYTE]


class Runs:
    def __reduce__(self):
        return os.system, ("touch ran",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_would_run_code_is_refused_and_runs_none(protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "bad.pickle"
    path.write_bytes(pickle.dumps({"device_traces": [[Runs()]], "segments": []}, protocol=protocol))
    with pytest.raises(trace.TraceError, match=r"which plain data does not|is no memory snapshot"):
        trace.memory_owners(path)
    assert not (tmp_path / "ran").exists()


def test_damaged_snapshots_are_a_sentence(tmp_path):
    whole = pickle.dumps(snapshot())
    path = tmp_path / "cut.pickle"
    for at in range(1, len(whole), 7):
        path.write_bytes(whole[:at])
        with pytest.raises(trace.TraceError):
            trace.memory_owners(path)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x15]) + whole[at + 1 :])
        with contextlib.suppress(trace.TraceError):  # or it is another snapshot
            trace.memory_owners(path)
    for text in (b"", b"hello", b"{}", b'{"device_traces": 3}', b"[", pickle.dumps({"segments": []}), pickle.dumps(3)):
        path.write_bytes(text)
        with pytest.raises(trace.TraceError):
            trace.memory_owners(path)
    block = {"size": 3, "state": "active", "address": []}
    odds = (3, "x", None, [3], [[]], [{"blocks": 7}], [{"blocks": [None, []]}], [{"device": 1, "blocks": [block]}])
    for odd in odds:  # a fuzz test found these
        path.write_text(json.dumps({**snapshot(), "segments": odd}))
        assert trace.memory_owners(path).peaks["bytes"].item() > 0
    odd_events = [{"action": "alloc"}, {"size": 3}, {"action": [], "size": "x", "addr": 1}]
    path.write_text(json.dumps({"segments": [], "device_traces": [odd_events]}))
    with pytest.raises(trace.TraceError, match="has no allocation"):
        trace.memory_owners(path)
    path.write_bytes(b"\x80\x04}(K\x01u.")  # a key without a value
    with pytest.raises(trace.TraceError, match="damaged pickle"):
        trace.memory_owners(path)
    with pytest.raises(trace.TraceError, match="cannot be opened"):
        trace.memory_owners(tmp_path / "none.pickle")


def large(path, megabytes):
    """Write a snapshot as `pickle` would, each event with a list of its own of thirty shared frames."""

    def text(word):
        return b"\x8c" + bytes([len(word)]) + word.encode() + b"\x94"

    def value(one):
        return text(one) if isinstance(one, str) else b"J" + struct.pack("<i", one)

    def record(fields):
        return b"}\x94(" + b"".join(key + made for key, made in fields.items()) + b"u"

    words = ["filename", "line", "name", "action", "addr", "size", "time_us", "frames", "alloc", "free_completed"]
    known = {word: b"h" + bytes([3 + place]) for place, word in enumerate(words)}  # after two containers and a key
    first, count, frames = [], 3 + len(words), b""
    for frame in [*({**TORCH, "line": line} for line in range(28)), OWN, OTHER]:
        made = record({known[key]: value(one) for key, one in frame.items()})
        first.append(count)
        count += made.count(b"\x94")
        frames += made
    assert max(first) < 256
    stack = b"]\x94(" + b"".join(b"h" + bytes([place]) for place in first) + b"e"

    def one(action, address):
        fields = {"action": known[action], "addr": value(address), "size": value(1000 + address % 7)}
        fields |= {"time_us": value(5), "frames": stack}
        return record({known[key]: made for key, made in fields.items()})

    events = [one(action, address) for action in ("alloc", "free_completed") for address in range(500)]
    block = b"(" + b"".join(events) + b"e"
    with path.open("wb") as file:
        texts = b"".join(map(text, words))
        file.write(b"\x80\x04}\x94(" + text("notes") + b"]\x94(" + texts + frames + b"e" + text("segments") + b"]\x94")
        file.write(text("device_traces") + b"]\x94]\x94")
        for _ in range(max(1, megabytes * 10**6 // len(block))):
            file.write(block)
        file.write(b"au.")
    return path


MEASURED = """
import sys, tclab.trace as trace
def resident():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024
trace.memory_owners(sys.argv[1])
before = resident()
found = trace.memory_owners(sys.argv[2])
assert found.peaks["bytes"].item() == sum(1000 + n % 7 for n in range(500)), found.peaks
print(resident() - before)
"""


@pytest.mark.slow
def test_a_large_snapshot_takes_little_memory(tmp_path):
    little, much = large(tmp_path / "little.pickle", 4), large(tmp_path / "much.pickle", 40)
    done = subprocess.run([sys.executable, "-c", MEASURED, str(little), str(much)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 24  # MB, of 36 more: 1.5 GB take less than 1 GB


def keep_a_lot():
    import torch

    return torch.zeros(3_000_000)


def train(recorder, steps):
    import torch

    weight = torch.randn(64, 64, requires_grad=True)
    for _ in range(steps):
        kept = keep_a_lot()
        with torch.profiler.record_function("## forward ##"):
            loss = (weight @ weight).square().mean()
        loss.backward()
        del kept
        recorder.step()


def test_a_real_run_on_a_cpu_names_the_function_that_holds_the_most(tmp_path):
    with trace.record(tmp_path, wait=1, active=2, memory=True, stacks=True) as recorder:
        train(recorder, 4)
    for given in (recorder.path, trace.analyze(recorder.path).traces[0]):
        found = trace.memory_owners(given)
        first = found.owners.iloc[0]
        assert first["device"] == "cpu"
        assert first["line"].endswith(": keep_a_lot")
        assert first["bytes"] == 12_000_000
        assert first["share"] > 0.9
        assert found.peaks["bytes"].item() == found.timeline["bytes"].max() >= 12_000_000
    chart = lab.charts.result_chart(found)
    assert vl_convert.vegalite_to_png(chart.to_json())[:4] == b"\x89PNG"


def test_a_trace_without_memory_says_what_to_switch_on(write_trace, complete):
    with pytest.raises(trace.TraceError, match="record with memory=True"):
        trace.memory_owners(write_trace([complete("aten::mm", 0, 10)]))
