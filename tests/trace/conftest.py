"""Small traces written by hand, and the real ones where they exist."""

import gzip
import json
from functools import lru_cache

import pytest

import tclab.trace as trace


@pytest.fixture
def complete():
    def event(name, start, duration, category="cpu_op", pid=1, tid=1, **args):
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid}
        return event | {"ts": start, "dur": duration} | ({"args": args} if args else {})

    return event


@pytest.fixture
def write_trace(tmp_path):
    def write(events, name="trace.json", **head):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**head, "traceEvents": events}).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return path

    return write


@pytest.fixture(scope="session")
def real_report(shared_data):
    """Return the report of a real trace by the begin of its file's name; each is read once."""
    return lru_cache(lambda begin: trace.analyze(next((shared_data / "torch_traces").glob(f"{begin}*"))))
