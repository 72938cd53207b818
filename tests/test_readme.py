"""The README's Python, run as a reader would: block after block, in one namespace, in a process of its own."""

import os
import re
import subprocess
import sys
import textwrap

import pytest

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# what the README takes for granted: files and folders of the reader's, and a cluster
PREPARE = """
    import inspect, shutil, sys
    from pathlib import Path
    import torch
    from torch.profiler import ProfilerActivity, profile
    import tclab
    from tclab.sweeps.slurm_options import minutes_of

    sys.path.insert(0, str(Path.cwd()))
    Path("lines.tsv").write_text("a\\tb\\nb\\tc\\n")
    for name in ("trace", "before", "after"):
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            torch.ones(3).sum()
        seen.export_chrome_trace(f"{name}.json.gz")
    point = tclab.Point(scale=0.01, networks=1, batch_size=1, steps=6, device="cpu")
    tclab.sweep([point], results="runs/before")
    shutil.copytree("runs/before", "runs/after")
    signature = inspect.signature(tclab.sweep)

    def sent(*points, **options):  # a cluster's queue: what is sent is looked at, and nothing runs
        signature.bind(*points, **options)
        assert options["executor"] == "slurm" and minutes_of(options["time"]) == 90
"""


def blocks(root):
    found = BLOCK.findall((root / "README.md").read_text(encoding="utf-8"))
    assert len(found) >= 10
    return found


def test_every_block_of_the_readme_runs_after_those_above_it(root, tmp_path):
    pytest.importorskip("altair")
    script = [textwrap.dedent(PREPARE)]
    for place, block in enumerate(blocks(root)):
        name = re.match(r"# (\w+\.py)\n", block)
        if name:  # a file that the README says to write
            (tmp_path / name[1]).write_text(block)
            continue
        script.append(f"print('block {place}', flush=True)")
        slurm = 'executor="slurm"' in block
        script += ["kept, tclab.sweep, points = tclab.sweep, sent, [point]"] * slurm + [block]
        script += ["tclab.sweep, rows = kept, None"] * slurm
    (tmp_path / "readme.py").write_text("\n".join(script), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "readme.py"], cwd=tmp_path, capture_output=True, text=True, timeout=600,
        env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    for said in ("fits", "after against before", "host closed", "mine: passed"):
        assert said in done.stdout
    assert (tmp_path / "sweep.html").stat().st_size > 10_000
    assert (tmp_path / "rows.csv").is_file()


def test_the_readmes_example_has_steps_enough_for_advice(root):
    steps = [int(number) for block in blocks(root) for number in re.findall(r"\bsteps=(\d+)", block)]
    assert steps
    assert min(steps) >= 8  # of fewer nothing is said
