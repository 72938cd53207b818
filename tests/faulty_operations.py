"""All that tclab writes but a sweep's rows, each with a fault at its n-th call that writes, for every n.

`test_faulty_calls.py` runs this with `faulty_calls.c` preloaded: `python faulty_operations.py <fault> [<operation> …]`.
It prints each promise that was broken, and for each operation how many calls were tried.
"""

import ctypes
import errno
import json
import re
import sys
import tempfile
import traceback
import warnings
from dataclasses import replace
from itertools import count
from pathlib import Path

from synthetic_machine import SyntheticMachine
from test_compare import rows, step

import tclab
from tclab import CellGraph, InputError, lab
from tclab.lab.panel._panel_state import PanelState
from tclab.perturbation import synthetic_perturbations
from tclab.perturbation._sample_store import StoredSamples
from tclab.sweeps import export
from tclab.timing import Ledger, race

FAILS, STAYS, SHORT, LOST = range(4)
FAULTS = {
    "ENOSPC": (errno.ENOSPC, FAILS),
    "EIO": (errno.EIO, FAILS),
    "EACCES": (errno.EACCES, FAILS),
    "full from then on": (errno.ENOSPC, STAYS),
    "read-only from then on": (errno.EROFS, STAYS),
    "short write": (0, SHORT),
    "rename or flush lost": (0, LOST),
}
THEIRS = "theirs.txt"  # somebody else's file beside what is written


def raced(path, budget):
    machine = SyntheticMachine(0)
    arms = {name: machine.arm(name, 0.2) for name in "ab"}
    return race(arms, budget_seconds=budget, record=path, clock=machine.clock, looks=1, isolated=False).samples()


class RaceRecord:
    """A race that goes on with its record: what was recorded before stays, and the race ends in any case."""

    def make(self, folder):
        return raced(folder / "race.jsonl", 2.0)

    def run(self, folder, before):
        raced(folder / "race.jsonl", 4.0)

    def check(self, folder, before, said, lost):
        after = raced(folder / "race.jsonl", 5.0)
        assert after[: len(before)] == before, "blocks of before are lost"


class Whole:
    """A file that is replaced: what can be read afterwards is the old content or the new one."""

    def __init__(self, write, read):
        self.write, self.read = write, read

    def make(self, folder):
        self.write(folder, 0)
        old = self.read(folder)
        (folder / "new").mkdir()
        self.write(folder / "new", 1)
        return old, self.read(folder / "new")

    def run(self, folder, before):
        self.write(folder, 1)

    def check(self, folder, before, said, lost):
        found = self.read(folder)
        assert found == before[1] or (found == before[0] and (said or lost)), "neither the old nor the new"
        self.write(folder, 1)
        assert self.read(folder) == before[1], "not the new one without a fault"


class Built:
    """A file that is made: it is read as whole or not at all, and made when nothing fails."""

    def __init__(self, build, read):
        self.build, self.read = build, read

    def make(self, folder):
        self.build(folder / "whole")
        return self.read(folder / "whole")

    def run(self, folder, before):
        self.build(folder / "made")

    def check(self, folder, before, said, lost):
        if not said:
            try:
                assert self.read(folder / "made") == before, "other content, and nothing said"
                return
            except InputError:
                pass  # said when it is read
        try:
            self.build(folder / "made")
        except InputError as error:
            told = str(error)
            assert re.search("not a", told), told
            (folder / "made").unlink()
            self.build(folder / "made")
        assert self.read(folder / "made") == before, "other content without a fault"


GRAPH = CellGraph.synthetic(0.01, metabolism=False).select(2)
SAMPLES = synthetic_perturbations(GRAPH, 200)
ROWS = rows(*(step(strategy=name, batch_size=size) for name in ("edge_mask", "node_mask") for size in (1, 2, 4)))
FAILED = rows(step(status="failed: on purpose"))  # a report of these draws no chart, which would take seconds


def ledger():
    made = Ledger()
    for _ in range(3):
        with made.step(), made.stage("forward"):
            pass
    return made


LEDGER = ledger()


def store(encoding):
    def build(folder):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            StoredSamples(GRAPH, SAMPLES, folder, encoding).close()

    def read(folder):
        samples = StoredSamples(GRAPH, SAMPLES, folder, encoding)
        found = samples.read(range(len(SAMPLES)))
        samples.close()
        return found.deletions.nodes.tolist(), found.scores.tolist()

    return Built(build, read)


def text_of(name):
    return lambda folder: (folder / name).read_text()


OPERATIONS = {
    "record of a race": RaceRecord(),
    "panel's state": Whole(
        lambda folder, number: replace(PanelState(), results=str(folder), seed=number).save(),
        lambda folder: json.loads((folder / "panel.json").read_text())["seed"],
    ),
    "rows for other programs": Whole(
        lambda folder, number: tclab.sweeps.write_rows(ROWS.iloc[: 2 + number], folder / "rows.csv"),
        text_of("rows.csv"),
    ),
    "ledger for Perfetto": Whole(
        lambda folder, number: export([LEDGER, LEDGER][number], "perfetto", folder / "ledger.json"),
        text_of("ledger.json"),
    ),
    "report": Whole(
        lambda folder, number: lab.report(FAILED, folder / "report.html", title=f"number {number}"),
        lambda folder: re.findall(r"<h1>.*</h1>|</html>", (folder / "report.html").read_text()),
    ),
    "store of samples": store("lmdb"),
    "graph's file": Built(GRAPH.save, lambda path: CellGraph.from_file(path).fingerprint()),
}


def left_behind(folder):
    return [path.name for path in folder.rglob(".writing-*")]


def tried(operation, fault, root):
    """Return how many calls an operation makes, each of which was made to fail; print what that broke."""
    library = ctypes.CDLL(None)
    number, kind = FAULTS[fault]
    for at in count(1):
        folder = Path(tempfile.mkdtemp(dir=root))
        (folder / THEIRS).write_text("theirs")
        before = operation.make(folder)
        said = []
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            library.fault_set(str(folder).encode(), ctypes.c_long(at), number, kind)
            try:
                operation.run(folder, before)
            except InputError as error:
                said = [str(error)]
            except BaseException:
                library.fault_set(b"", ctypes.c_long(-1), 0, 0)
                print(f"call {at}: raw error\n{traceback.format_exc()}")
            passed = library.fault_left() > 0
            library.fault_set(b"", ctypes.c_long(-1), 0, 0)
        said += [str(one.message) for one in warned]
        try:
            assert (folder / THEIRS).read_text() == "theirs", "somebody else's file"
            if kind in (FAILS, SHORT):
                assert not left_behind(folder), f"left behind: {left_behind(folder)}"
            operation.check(folder, before, said, lost=kind == LOST)
        except BaseException:
            print(f"call {at}, {said}: broken\n{traceback.format_exc()}")
        if passed:
            return at - 1
    raise AssertionError


if __name__ == "__main__":
    fault, names = sys.argv[1], sys.argv[2:] or list(OPERATIONS)
    with tempfile.TemporaryDirectory() as root:
        for name in names:
            print(f"{name}: {tried(OPERATIONS[name], fault, root)} calls", flush=True)
