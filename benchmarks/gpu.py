"""Everything that needs a GPU, most valuable first: one command, one log with a verdict a part, rows as each part ends.

    python benchmarks/gpu.py [--device cuda] [--scale 1.0] [--parts abjcdefghi] [--out runs/gpu] [--minutes 9]

`make gpu` runs it. Each part (`gpu_parts.py`) is a process of its own, of at most nine minutes. What a part measured is
in `OUT/<part>_<name>.csv`, its words in `OUT/<part>.log`, its verdict in `OUT/<part>.json`, and a line of each in
`OUT/log.txt`. Started again, it goes on with the first part that has not passed; parts that sweep points, or race,
go on where they were. (d) and (g) write a recording, which notebooks show on any machine: on CUDA into
`data_samples/recordings/<device>/`, otherwise under OUT. No notebook package is needed. What is missing is said first.

A rehearsal of every part, of what can be shown on a CPU:

    python benchmarks/gpu.py --device cpu --scale 0.02 --out DIR
"""

import argparse
import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # nothing need be installed

from tclab._child_process import PARENT, child_command
from tclab._io import atomic_write

ROOT = Path(__file__).resolve().parents[1]
PARTS = {
    "a": "the environment, and one small point from its check to its rows",
    "b": "every exact strategy in every dtype through the equivalence check",
    "j": "a captured step of node_mask beside the eager one: its losses, and races over batch sizes, in fp32 and bf16",
    "c": "one layer's sums over all networks, forward and backward: each kernel, in fp32 and bf16",
    "d": "the whole step: every strategy of HeteroCell, and DANGO, over batch sizes; memory beside `fits`",
    "e": "the ledger's accounted share, spike-in and cost, and the host's waits for the device in each strategy",
    "f": "a race of whole steps with its A/A: the same point twice must be no faster than itself",
    "g": "the sweep and the recording for the notebooks: batch sizes, networks and modes",
    "h": "one rank of NCCL (gloo on a CPU): DDP's step beside the plain one",
    "i": "torch.profiler's trace of our own step, read by `tclab.trace`: its stages against the ledger's",
}
# beside torch and what `pip install '.[sweep]'` brings
WANTED = {"triton": "our kernels, in (c)", "lightning": "Lightning's loop, in (e)"}


def verdict_of(part: str, out: Path) -> dict[str, Any] | None:
    """Return a part's verdict; `None` where it has none yet."""
    path = out / f"{part}.json"
    return json.loads(path.read_text()) if path.exists() else None


def in_a_process(part: str, given: argparse.Namespace) -> dict[str, Any]:
    """Run a part in a process of its own, which ends after its minutes and with this one, and return its verdict."""
    (given.out / f"{part}.json").unlink(missing_ok=True)
    words = [part, given.device, str(given.scale), str(given.out), str(given.minutes)]
    path = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")])
    environment = {"TCLAB_CACHE": str(given.out / "cache"), **os.environ, "PYTHONPATH": path, PARENT: str(os.getpid())}
    if given.device == "cpu":
        environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        environment |= {"TRITON_INTERPRET": "1"} if part == "c" else {}  # it is no way to run a step
    log = given.out / f"{part}.log"
    with log.open("ab") as file:
        how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file, "env": environment}
        try:
            done = subprocess.run(child_command("gpu_parts", *words), **how, timeout=60 * given.minutes)
            why = f"ended with {done.returncode}"
        except subprocess.TimeoutExpired:  # it has been killed, and what it started ends with it
            why = f"ran over {given.minutes:g} minutes"
    last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
    return verdict_of(part, given.out) or {"passed": False, "says": f"{why}: {last[0]}"}


def drive(given: argparse.Namespace) -> int:
    """Run the parts that have not passed; return how many did not pass."""
    given.out.mkdir(parents=True, exist_ok=True)
    asked = json.dumps({"device": given.device, "scale": given.scale})
    mark = given.out / "settings.json"
    if mark.exists() and mark.read_text() != asked:
        sys.exit(f"{given.out} is of {mark.read_text()}: give another --out for {asked}")
    atomic_write(mark, asked)

    def say(line: str) -> None:
        print(line, flush=True)
        with (given.out / "log.txt").open("a") as log:
            log.write(line + "\n")

    for name, what in WANTED.items():
        if find_spec(name) is None:
            say(f"missing package {name}, and with it {what}")
    failed = 0
    for part in given.parts:
        found = verdict_of(part, given.out)
        how, begin = "passed before", time.monotonic()
        if found is None or not found["passed"]:
            found = in_a_process(part, given)
            how = f"{'passed' if found['passed'] else 'FAILED'}, {time.monotonic() - begin:.0f} s"
        failed += not found["passed"]
        say(f"({part}) {how}: {PARTS[part]}\n    {found['says']}")
    say(f"{len(given.parts) - failed} of {len(given.parts)} parts passed; rows in {given.out}")
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--parts", default="".join(PARTS))
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "gpu")
    parser.add_argument("--minutes", type=float, default=9.0, help="of one part, at most")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"unknown parts {''.join(sorted(unknown))}; there are {''.join(PARTS)}")
    given.out = given.out.resolve()
    failed = drive(given)
    if given.device == "cuda" and find_spec("pandas"):
        sys.path.insert(0, str(ROOT / "tools"))
        import readme_figures

        readme_figures.write()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
