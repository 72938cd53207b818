"""From `tclab.run` to the model's forward: the functions on the way are those that the architecture page names."""

import re
import sys
from pathlib import PurePath

import tclab
from tclab.sweeps.execution import _run, _worker

# "3. in it `main` in `_worker.py` …": a function, and the file that it is in, or "there", in that of the one before
LINE = re.compile(r"^\d\. (?:in it )?`([\w.]+)`(?: \([^)]*\))? (?:in `([\w/]+\.py)`|there)", re.MULTILINE)


def named(page):
    """Return (file, function) of each line of the page's list, files from the package on."""
    found, file = [], PurePath()
    for function, path in LINE.findall(page):
        if path:
            file = PurePath(path) if "/" in path else file.with_name(path)
        found.append((str(file), function))
    return found


class WorkerHere:
    """A worker whose `main` runs in this process: the requests that it reads, and the rows that it sends."""

    alive = True

    def __init__(self, kind):
        self.has_read, self.sent = {}, []

    def ask(self, request, **options):
        self.request = request
        _worker.main()
        return self.sent[0]["rows"]

    def receive(self):
        request, self.request = self.request, None
        return request

    def send(self, **answer):
        self.sent.append(answer)

    def close(self):
        pass


def test_eight_functions_lead_from_a_point_to_the_model(root, monkeypatch):
    forward = tclab.models.get("hetero_cell").forward.__code__
    worker, calls = WorkerHere(None), []
    monkeypatch.setattr(_run, "Worker", lambda kind: worker)
    monkeypatch.setattr(_worker, "ParentPipe", lambda: worker)
    monkeypatch.setattr(sys, "argv", ["", "1", "cpu", "0"])

    def listen(frame, event, argument):
        if event == "call" and frame.f_code is forward:
            calls.append([])
            while frame is not None:
                file, _, within = frame.f_code.co_filename.rpartition("/tclab/")
                if file:
                    calls[-1].insert(0, (f"tclab/{within}", frame.f_code.co_qualname))
                frame = frame.f_back

    sys.setprofile(listen)
    try:
        tclab.run(tclab.Point(scale=0.01, networks=1, device="cpu", workers=0, steps=1), fresh=True)
    finally:
        sys.setprofile(None)
    way = calls[-1]  # of a timed step
    way[-1] = (way[-1][0], "ModelKind.forward")  # that field of the model's kind
    expected = named((root / "docs" / "architecture.md").read_text())
    assert len(expected) == 8
    assert [one for one in way if one in expected] == expected
    files = dict.fromkeys(file for file, _ in way)
    assert list(files) == list(dict.fromkeys(file for file, _ in expected))  # a reader opens no other file
