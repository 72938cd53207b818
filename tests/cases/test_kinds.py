"""Further inputs of the kinds of `README.md`'s first table: what a machine, a script or a deleted row may be like."""

import subprocess
import sys

import pytest
import torch

from tclab import InputError, SharedGraph, timing
from tclab.message_passing import SharedGATv2Conv, SharedGCNConv, SharedGINConv, SharedSAGEConv

SPIN = """
import argparse, signal, sys
from time import perf_counter

def spin():
    end = perf_counter() + 0.2
    while perf_counter() < end: pass

"""
SCRIPTS = {
    "a timer of its own, an exit with a text": """
ticks = []
signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
spin()
signal.setitimer(signal.ITIMER_REAL, 0)
sys.exit(f"it ticked: {len(ticks) > 0}")
""",
    "an ignored alarm, an exit with a list": """
signal.signal(signal.SIGALRM, signal.SIG_IGN)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
spin()
raise SystemExit(["what", 1])
""",
    "an alarm that is caught, a wrong argument": """
def late(*_): raise TimeoutError
signal.signal(signal.SIGALRM, late)
signal.setitimer(signal.ITIMER_REAL, 0.05)
try: spin()
except TimeoutError: print("late", file=sys.stderr)
argparse.ArgumentParser().parse_args(["--dta", "none"])
""",
}


@pytest.mark.parametrize("source", SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_that_takes_alarms_runs_as_by_python(source, tmp_path, capfd):
    path = tmp_path / "script.py"
    path.write_text(SPIN + source)
    plain = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    try:
        seen = timing.profile(path)
    except InputError as error:
        pytest.skip(str(error))
    assert seen.exit_code == plain.returncode != 0
    assert plain.stderr
    assert plain.stderr in capfd.readouterr().err


# Node 1 is deleted, 0 has the rows 1 of its own and 3 of node 2; every weight is 2, biases and attention are 0.
LAYERS = {
    "GCN": (lambda: SharedGCNConv(1, 1), 2 * (1 / 2 + 3 / 2**0.5)),
    "GIN": (lambda: SharedGINConv(torch.nn.Linear(1, 1)), 2 * (1 + 3)),
    "SAGE": (lambda: SharedSAGEConv(1, 1), 2 * 1 + 2 * 3),
    "GATv2": (lambda: SharedGATv2Conv(1, 1), (2 * 1 + 2 * 3) / 2),
}


@pytest.mark.parametrize("held", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", LAYERS)
def test_what_a_deleted_row_holds_reaches_no_kept_one_forward_or_backward(name, held):
    made, right = LAYERS[name]
    conv = made()
    with torch.no_grad():
        for parameter, values in conv.named_parameters():
            values.fill_(2.0 if parameter.endswith("weight") else 0.0)
    x = torch.tensor([1.0, held, 3.0]).view(3, 1, 1).requires_grad_()
    keep = torch.tensor([[True], [False], [True]])
    out = conv(x, SharedGraph(torch.tensor([[1, 2], [0, 0]]), 3), keep)
    assert out[0].item() == pytest.approx(right)
    out[keep].sum().backward()
    assert x.grad[1].item() == 0
    assert all(grad.isfinite().all() for grad in (x.grad, *(p.grad for p in conv.parameters() if p.grad is not None)))
