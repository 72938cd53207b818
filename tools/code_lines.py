#!/usr/bin/env python3
"""Count the lines of code of `tclab/`, a line for each package; exit with 1 above the cap in `pyproject.toml`.

Lines that hold a token count, without comments, docstrings and blank lines; imports count.
"""

import ast
import io
import sys
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def code_lines(path: Path) -> int:
    """Return the number of lines of code of a Python file."""
    source = path.read_text(encoding="utf-8")
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        of_docstrings = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, of_docstrings) and ast.get_docstring(node) is not None:
            lines.difference_update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def main() -> None:
    """Print the counts and the cap; exit with 1 where it is broken."""
    lines: Counter[str] = Counter()
    files = sorted((ROOT / "tclab").rglob("*.py"))
    for path in files:
        package, *inside = path.relative_to(ROOT / "tclab").parts
        lines[package if inside else "(top)"] += code_lines(path)
    for name, number in lines.most_common():
        print(f"{name:20} {number:7,} lines of code")
    most = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["tclab"]["code_lines_at_most"]
    print(f"{lines.total():,} lines of code in {len(files)} files; {most:,} at most, by code_lines_at_most")
    sys.exit(lines.total() > most)


if __name__ == "__main__":
    main()
