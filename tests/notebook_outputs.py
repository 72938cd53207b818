"""What notebooks show, by their defaults: words, pictures, and no missing value in a table."""

import re

# what a cell says, whatever the budget ended: notebook → cell → words
SAID = {
    "where_time_goes": {"findings": "a step takes"},
    "hypotheses": {"hypotheses": "Data pipeline:"},
    "your_model": {"check": "600 station nodes", "check-strategy": "closed_stations passed:",
                   "loop-advice": "from 40 steps of this loop"},
    "masks": {"held-out": "predicted_filter_seconds"},
    "scaling": {"epochs": "predicted"},
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
