"""Tables of predicted and measured epochs."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from tclab.sweeps.predict._epoch import Epoch


def epoch_name(epoch: Epoch) -> str:
    point = epoch.point
    workers = "1 worker" if point.workers == 1 else f"{point.workers} workers"
    return f"{point.model} · {point.strategy} · {point.mode} · batch {point.batch_size} · {workers}"


def epoch_table(epochs: Iterable[Epoch]) -> pd.DataFrame:
    """Return a row an epoch: when it was predicted and begun, both times, what bounds it, and the full epoch."""
    return pd.DataFrame(
        [
            {
                "epoch": epoch_name(epoch),
                "steps": epoch.predicted.steps,
                "predicted at (UTC)": epoch.written_at[11:23],
                "begun at (UTC)": epoch.began_at[11:23],
                "predicted s": epoch.predicted.seconds,
                "5 % to 95 %": f"{epoch.predicted.low:.3g} to {epoch.predicted.high:.3g}",
                "measured s": epoch.measured_seconds,
                "predicted over measured": epoch.ratio,
                "bound by": epoch.predicted.binds,
                "drift": epoch.drift,
                "load": epoch.load,
                "full epoch steps": epoch.full.steps,
                "full epoch s, predicted": epoch.full.seconds,
            }
            for epoch in epochs
        ]
    ).set_index("epoch")


def model_ratios(epochs: Iterable[Epoch]) -> pd.DataFrame:
    """Return how many times as long each model's epoch takes as the fastest one's, predicted and measured.

    Epochs of the same mode, workers and steps are compared, a row for each model but the fastest. A full epoch has
    as many steps as the model's batch size makes of all training samples.
    """
    groups: dict[tuple[str, int, int], list[Epoch]] = {}
    for epoch in epochs:
        groups.setdefault((epoch.point.mode, epoch.point.workers, epoch.predicted.steps), []).append(epoch)
    rows = []
    for (mode, workers, steps), group in groups.items():
        fastest, *others = sorted(group, key=lambda epoch: epoch.measured_seconds)
        rows += [
            {
                "models": f"{other.point.model} : {fastest.point.model}",
                "mode": mode,
                "workers": workers,
                "steps": steps,
                "predicted": other.predicted.seconds / fastest.predicted.seconds,
                "measured": other.measured_seconds / fastest.measured_seconds,
                "full epoch, predicted": other.full.seconds / fastest.full.seconds,
            }
            for other in others
            if other.point.model != fastest.point.model
        ]
    columns = ["models", "mode", "workers", "steps", "predicted", "measured", "full epoch, predicted"]
    return pd.DataFrame(rows, columns=columns).set_index("models")
