"""Further inputs of a kind of `README.md`'s first table: what a script may be like."""

import subprocess
import sys

import pytest

from tclab import InputError, timing

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
