"""Print the sentences that tclab says, each with example values, so that they are read on a few pages: `make texts`.

The rows are of real runs on a small graph; some get another status afterwards, so that each kind of finding is there.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import tclab
from tclab import lab, models, timing, trace
from tclab.timing._verdict import Pair, sentence_of

RACED = Pair("delta", "edge_mask", "FASTER", 0.523, (0.51, 0.54), kept=24, processes=4, lasts_seconds=7.5)
OPEN = replace(RACED, verdict="UNDECIDED", interval=(0.9, 1.1), ratio=0.99, lasts_seconds=None)
SHORT = replace(OPEN, ratio=None, interval=None, kept=5, needs_seconds=130.0)
VERDICTS = (
    RACED,
    replace(RACED, verdict="SAME", ratio=1.001, interval=(0.99, 1.014)),
    OPEN,
    replace(OPEN, needs_seconds=240.0),
    replace(OPEN, differ=True),
    SHORT,
    replace(SHORT, reason="one run each; run-to-run variation is not known"),
    replace(RACED, runs=(3, 3), lasts_seconds=None),
    replace(RACED, period=(12, 90.0)),
)
STATUSES = ("oom", "failed: ValueError: expected 3 features", "wrong: gene_mlp.weight is off by 3e-2")
SETTING = {"model": "hetero_cell", "scale": 0.02, "steps": 4, "warmup": 1, "device": "cpu"}
GRAPH = tclab.CellGraph.synthetic(scale=0.02, seed=0)
WRONG: tuple[Callable[[], object], ...] = (
    lambda: tclab.Point(strategy="nodemask"),
    lambda: tclab.Point(batch_size=0),
    lambda: tclab.Point(model="hetero"),
    lambda: tclab.grid(batch_sizes="1,two"),
    lambda: tclab.view(GRAPH, [[99_999]], "node_mask"),
    lambda: tclab.view(GRAPH, [3], "node_mask"),
    lambda: tclab.rows("nowhere"),
    lambda: tclab.SharedGraph(torch.tensor([[0, 9], [1, 0]]), 3),
    lambda: models.get("dang"),
    lambda: timing.race({"alone": print}, budget_seconds=1.0),
    lambda: tclab.readers.edge_list("nowhere.csv"),
    lambda: trace.analyze("nowhere.json"),
    lambda: tclab.run(tclab.Point(**SETTING | {"model": "dango", "strategy": "node_mask"})),
)


def main() -> int:
    """Print all; it takes a minute or two."""
    _say("Verdicts", *map(sentence_of, VERDICTS))
    strategies = ("edge_mask", "node_mask", "delta", "khop_1", "indices")
    points = [tclab.Point(**SETTING, strategy=strategy, batch_size=size) for strategy in strategies for size in (2, 4)]
    with TemporaryDirectory() as folder:
        progress: list[str] = []
        rows = tclab.sweep(points, results=Path(folder), repeats=2, progress=progress.append)
    _say("A sweep", *progress, rows, *lab.findings(rows))
    _say("Advice", tclab.advise(rows), tclab.compare(rows, rows))
    for status in STATUSES:
        changed = rows.copy()
        changed.loc[changed["strategy"] == "node_mask", "status"] = status
        _say(f"A sweep with a setting that is {status.split(':')[0]}", changed, *lab.findings(changed)[-2:])
    check = tclab.check("hetero_cell", GRAPH, strategies="node_mask,khop_1")
    _say("The equivalence check, memory", check, tclab.fits(tclab.Point(strategy="edge_mask", batch_size=28)))
    model, batches = torch.nn.Linear(64, 1), [torch.randn(32, 64) for _ in range(8)]
    with timing.Ledger() as ledger:
        for batch in ledger.steps(batches):
            with ledger.stage("forward"):
                model(batch).sum()
    raced = timing.race({"new": lambda: model(batches[0]), "old": lambda: model(batches[1])}, budget_seconds=3.0)
    _say("A ledger, a race", ledger, timing.advise(ledger), raced)
    _say("Errors", *map(_error, WRONG))
    return 0


def _say(title: str, *texts: object) -> None:
    print(f"\n{title}\n{'-' * len(title)}\n", *texts, sep="\n", flush=True)


def _error(call: Callable[[], object]) -> str:
    try:
        return f"(no error: {call()})"
    except (tclab.InputError, OSError) as error:
        return str(error)


if __name__ == "__main__":
    sys.exit(main())
