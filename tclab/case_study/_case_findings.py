"""Sentences about the case study: the two models' ratios mode by mode, and a verdict for each hypothesis."""

from __future__ import annotations

import pandas as pd

from tclab.case_study._hypotheses import hypotheses
from tclab.case_study._published import measured_ratios
from tclab.lab.reports._stage_parts import times_text
from tclab.sweeps.store._row_files import Runs, rows_of


def findings(rows: Runs, rank_rows: Runs | None = None) -> list[str]:
    """Return what the rows of the modes show of the published claims, a sentence each.

    **Arguments:** as for `hypotheses`.
    """
    rows = rows_of(rows)
    rank_rows = rank_rows if rank_rows is None else rows_of(rank_rows)
    verdicts = [f"Hypothesis “{found.name}”: {found.verdict}." for found in hypotheses(rows, rank_rows)]
    return [sentence for sentence in (_ratios(rows), *verdicts) if sentence]


def _ratios(rows: pd.DataFrame) -> str:
    found = measured_ratios(rows)
    parts = []
    for strategy, group in found.groupby("strategy", sort=False):
        named = [
            f"{row['mode']} {times_text(row['ratio'])} [{row['low']:.2g}, {row['high']:.2g}]"
            for _, row in group.iterrows()
        ]
        parts.append(f"with {strategy} {', '.join(named)}")
    if not parts:
        return ""
    return f"A step of the hetero model takes, of DANGO's, [95 % interval]: {'; '.join(parts)}."
