#!/usr/bin/env python3
"""Count lines of code: lines that hold a token, without comments, docstrings and blank lines; imports count.

code_lines.py tclab                          a line for each package, then the sum
code_lines.py tclab --cap pyproject.toml     exit status 1 above `code_lines_at_most` of its [tool.tclab]
"""

import argparse
import ast
import io
import sys
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

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
        has_docstring = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if has_docstring and ast.get_docstring(node) is not None:
            lines.difference_update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def main() -> None:
    """Print what the command line asks for; exit with 1 where the cap is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cap", type=Path)
    given = parser.parse_args()
    lines: Counter[str] = Counter()
    files = sorted(given.folder.rglob("*.py"))
    for path in files:
        package, *inside = path.relative_to(given.folder).parts
        lines[package if inside else "(top)"] += code_lines(path)
    for name, number in lines.most_common():
        print(f"{name:20} {number:7,} lines of code")
    total = lines.total()
    print(f"{total:,} lines of code in {len(files)} files")
    if given.cap is not None:
        most = tomllib.loads(given.cap.read_text(encoding="utf-8"))["tool"]["tclab"]["code_lines_at_most"]
        print(f"{most:,} at most, by code_lines_at_most in {given.cap}")
        sys.exit(total > most)


if __name__ == "__main__":
    main()
