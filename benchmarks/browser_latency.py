"""How long a person waits in the live lab, beside what it promises: `python benchmarks/browser_latency.py`.

Drives JupyterLab with Chromium by tests/test_browser.py, on a machine that should have nothing else to do.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROMISED = {  # seconds; bytes for a notebook
    "first_bar_seconds": 5.0,
    "stop_seconds": 1.0,
    "slider_seconds": 0.2,
    "busy_slider_seconds": 0.2,
    "slider_at_500_points_seconds": 0.2,
    "notebook_of_500_points_bytes": 2_000_000,
}


def main():
    subprocess.run([sys.executable, "-m", "pytest", "-q", "tests/test_browser.py"], cwd=ROOT, check=True)
    found = json.loads((ROOT / "runs" / "browser" / "figures.json").read_text())
    for name, promised in PROMISED.items():
        if name not in found:
            print(f"{name}: not measured")
            continue
        print(
            f"{name}: {found[name]:.3g}, promised {promised:g}, {'kept' if found[name] < promised else 'not kept'}"
        )


if __name__ == "__main__":
    main()
