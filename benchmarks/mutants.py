"""Who finds whom: each wrong strategy, verdict and ledger of `tests/test_mutants.py`, and what tells it from right.

python benchmarks/mutants.py
"""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools"), str(ROOT / "benchmarks")]

import test_mutants as mutants  # noqa: E402


def broken(kept):
    """Return the promises that are not kept, in words."""
    return "; ".join(promise for promise, is_kept in kept.items() if not is_kept) or "SURVIVES"


def main():
    print("| strategy | the check | the table of equality |\n|---|---|---|")
    references = mutants.references()
    for name in mutants.MUTANTS:
        found = (mutants.killed_by(references, name), mutants.found_by_the_table(name))
        print(f"| {name} | {' | '.join(by or 'SURVIVES' for by in found)} |", flush=True)
    print("\n| verdict | promises that it breaks |\n|---|---|")
    for name, patched in mutants.VERDICTS.items():
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(*patched)
            print(f"| {name} | {broken(mutants.kept_promises())} |", flush=True)
    print("\n| ledger | promises that it breaks |\n|---|---|")
    for name, patched in mutants.LEDGERS.items():
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(*patched)
            print(f"| {name} | {broken(mutants.kept_by_the_ledger(monkeypatch))} |", flush=True)
    for drift in (0.95, 0.97, 1.03, 1.05):
        with pytest.MonkeyPatch.context() as monkeypatch:
            print(f"| a clock that runs at {drift} | {broken(mutants.kept_by_the_ledger(monkeypatch, drift))} |")


if __name__ == "__main__":
    main()
