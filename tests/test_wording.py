"""No translated idiom in what a user reads: README, docs, notebooks' prose, `make help`, strings of `tclab/`."""

import ast
import json
import re
from functools import cache

import pytest
from test_notebooks import NOTEBOOKS

# pattern → what to write instead
IDIOMS = {
    r"\b(?:samples|batches|steps|times|bytes|MB|GB) a second\b": "per second",
    r"\bgo(?:es)? on\b": "resumes, continues",
    r"\bin place of\b": "instead of",
    r"(?<![Tt]here )\bis no (?!longer\b)": "is not a",
    r"\b[Bb]y \d+ steps\b": "based on 8 steps",
    r"\bcarries\b": "holds; batch size",
    r"\b[Ww]hat of\b": "are … worth it?",
    r"\barms?\b(?! are)": "candidate",  # `arms` is a parameter
    r"\b(?:[Nn]o|every|each|this|present) points?\b": "setting",
}
NAMED = re.compile(r"`[^`]*`")  # code keeps its names


def printed(source, *, docstrings=False):
    """Yield the strings of a module that have words in them, without docstrings unless `--help` shows them."""
    tree = ast.parse(source)
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and not docstrings}
    for node in ast.walk(tree):
        value = getattr(node, "value", None)
        if isinstance(node, ast.Constant) and isinstance(value, str) and " " in value.strip() and id(node) not in docs:
            yield value


@cache
def texts(root):
    """Return (file, text) of all that a user reads, each text in one line and without code."""
    return [(name, NAMED.sub(" ", " ".join(text.split()))) for name, text in every_text(root)]


def every_text(root):
    for page in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        yield page.name, page.read_text(encoding="utf-8")
    yield "Makefile", "\n".join(re.findall(r"^(?:# |\t@echo )(.*)", (root / "Makefile").read_text(), re.MULTILINE))
    for path in NOTEBOOKS:
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "markdown":
                yield path.name, "".join(cell["source"])
    for path in sorted((root / "tclab").rglob("*.py")):
        for text in printed(path.read_text(encoding="utf-8"), docstrings=path.parent.name == "command"):
            yield path.name, text


@pytest.mark.parametrize("idiom", IDIOMS)
def test_no_idiom_is_translated(root, idiom):
    found = [
        f"{name}: …{text[max(0, match.start() - 30) : match.end() + 20]!r}"
        for name, text in texts(root)
        for match in re.finditer(idiom, text)
    ]
    assert not found, f"write {IDIOMS[idiom]!r}:\n" + "\n".join(found)
