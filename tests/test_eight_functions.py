"""From `tclab.run` to the model's forward, and on to a sum: the functions on the way are those that the architecture
page names.
"""

import re
import sys
from pathlib import PurePath
from unittest.mock import Mock

import tclab
from tclab.message_passing.kernels import _spmm
from tclab.sweeps import _run, _worker

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


def lists(root):
    """Return the functions of the page's two lists."""
    page = (root / "docs" / "architecture.md").read_text()
    return [named(part) for part in page.split("## From the model to a sum")]


def way_to(frame):
    """Return (file, function) of each call of tclab's that leads to a frame, which is the last."""
    way = []
    while frame is not None:
        file, _, within = frame.f_code.co_filename.rpartition("/tclab/")
        if file:
            way.insert(0, (f"tclab/{within}", frame.f_code.co_qualname))
        frame = frame.f_back
    return way


def worker_here():
    """Return a worker whose `main` runs in this process: it reads a request and then none, and sends the rows."""
    worker = Mock(alive=True, code={})

    def ask(request, **options):
        worker.receive.side_effect = [request, None]
        _worker.main()
        return worker.send.call_args.kwargs["rows"]

    worker.ask = ask
    return worker


def test_eight_functions_lead_from_a_point_to_the_model(root, monkeypatch):
    forward = tclab.models.get("hetero_cell").forward.__code__
    worker, calls = worker_here(), []
    monkeypatch.setattr(_run, "Worker", lambda kind: worker)
    monkeypatch.setattr(_worker, "ParentPipe", lambda: worker)
    monkeypatch.setattr(sys, "argv", ["", "1", "cpu"])

    def listen(frame, event, argument):
        if event == "call" and frame.f_code is forward:
            calls.append(way_to(frame))

    sys.setprofile(listen)
    try:
        tclab.run(tclab.Point(scale=0.01, networks=1, device="cpu", workers=0, steps=1), fresh=True)
    finally:
        sys.setprofile(None)
    way = calls[-1]  # of a timed step
    way[-1] = (way[-1][0], "ModelKind.forward")  # that field of the model's kind
    expected, _ = lists(root)
    assert len(expected) == 8
    assert [one for one in way if one in expected] == expected
    files = dict.fromkeys(file for file, _ in way)
    assert list(files) == list(dict.fromkeys(file for file, _ in expected))  # a reader opens no other file


def test_five_more_lead_from_the_model_to_a_sum(root):
    graph, calls = tclab.CellGraph.synthetic(0.01, metabolism=False), []
    model = tclab.models.HeteroCell.profiling(graph)

    def listen(frame, event, argument):
        if event == "call" and frame.f_code is _spmm.product.__code__:
            calls.append(way_to(frame))

    with tclab.view(graph, [[0]], "node_mask") as view:
        sys.setprofile(listen)
        try:
            model(view)
        finally:
            sys.setprofile(None)
    _, expected = lists(root)
    assert len(expected) == 5
    for way in calls:
        assert [function for function in way if function in expected] == expected
    files = dict.fromkeys(file for file, _ in calls[0])
    assert files.keys() == {file for file, _ in expected}  # a reader opens no other file
