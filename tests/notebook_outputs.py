"""What notebooks must find; and what they show by their defaults: words, pictures, no missing value in a table."""

import re

# What a notebook that runs by its defaults has less of: time, and processes that are started anew for a race.
LIMITS = """
if "budget_seconds" in globals():
    budget_seconds = min(budget_seconds or 6, 6)
if "processes" in globals():
    processes = min(processes, 2)
"""
# What a cell of a notebook must have found, notebook → cell → a condition: nbval alone sees exceptions, and their saved
# outputs are stripped.
FINDS = {
    "sweep.ipynb": {"answer": "any('node_mask' in one for one in lab.findings(rows))",
                    "by-networks": "strategies == 'auto' or {*rows.strategy} == {'edge_mask', 'node_mask', 'indices'}",
                    "advice": "advice.subject.startswith('from ')"},
    "explore.ipynb": {"table": "rows['status'].eq('ok').any()", "advice": "advice is not none_yet"},
    "scaling.ipynb": {"epochs": "len(epochs) == len(epoch_points) > 0"},
    "masks.ipynb": {"race": "{pair.a for pair in race.pairs} | {pair.b for pair in race.pairs} == {*arms}",
                    "held-out": "len(measured) == len(unseen) > 0"},
    "where_time_goes.ipynb": {"findings": "any('a step takes' in one for one in lab.findings(rows, 'steps'))"},
    "trust.ipynb": {"race": "len(race.pairs) > 0"},
    "trace.ipynb": {"findings": "len(report.findings) > 0"},
    "cell_graph.ipynb": {"reach": "len(rows) > 0"},
    "your_model.ipynb": {"stages": "rows['status'].eq('ok').any()"},
    "hypotheses.ipynb": {"ratios-table": "len(ratios) > 0"},
}  # fmt: skip
# what a cell says, whatever the budget ended: notebook → cell → words
SAID = {
    "where_time_goes": {"findings": "a step takes"},
    "hypotheses": {"hypotheses": "Data pipeline:"},
    "your_model": {"check": "600 station nodes", "check-strategy": "closed_stations passed:",
                   "loop-advice": "from 40 steps of this loop"},
    "masks": {"held-out": "predicted_filter_seconds"},
    "scaling": {"epochs": "predicted"},
    "features": {"answer": "273 GB are 38 bytes for each edge of each sample"},
}  # fmt: skip


def text_of(outputs):
    """Return what a cell shows as plain text, in one line."""
    parts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs]
    return " ".join("".join(map("".join, parts)).split())


def shown_well(cell, outputs, said, *, pictured):
    """Hold a cell to the words that it says, to its picture, and to tables without NaN or None."""
    assert said.get(cell, "") in text_of(outputs), f"{cell}: {text_of(outputs)}"
    assert not pictured or any("image/png" in output.get("data", {}) for output in outputs), f"{cell} shows no picture"
    html = "".join("".join(output.get("data", {}).get("text/html", "")) for output in outputs)
    assert not re.search(r">(NaN|None|&lt;NA&gt;)<", html), f"{cell}: {html}"
