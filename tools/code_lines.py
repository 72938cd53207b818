#!/usr/bin/env python3
"""Count lines of code: lines that hold a token, without comments, docstrings and blank lines; imports count.

code_lines.py tclab                          a line for each package, then the sum
code_lines.py tclab --cap pyproject.toml     exit status 1 above `code_lines_at_most` of its [tool.tclab]
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def code_lines(path: Path) -> tuple[set[int], ast.Module]:
    """Return the numbers of the lines of code of a Python file, and its syntax tree."""
    source = path.read_text(encoding="utf-8")
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    tree = ast.parse(source)
    return lines - set(_docstring_lines(tree)), tree


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if (
            isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            and ast.get_docstring(node) is not None
        ):
            yield from range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)


def packages_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Return package → (lines of code, files) of a folder; its own modules are the package "(top)"."""
    found: dict[str, tuple[int, int]] = {}
    for path in sorted(folder.rglob("*.py")):
        package, *inside = path.relative_to(folder).parts
        lines, files = found.get(name := package if inside else "(top)", (0, 0))
        found[name] = (lines + len(code_lines(path)[0]), files + 1)
    return found


def main() -> None:
    """Print what the command line asks for; exit with 1 where the cap is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cap", type=Path)
    given = parser.parse_args()
    packages = packages_of(given.folder)
    for name, (lines, files) in sorted(packages.items(), key=lambda item: -item[1][0]):
        print(f"{name:20} {lines:7,} lines of code {files:4} files")
    total = sum(lines for lines, _ in packages.values())
    print(f"{total:,} lines of code in {sum(files for _, files in packages.values())} files")
    if given.cap is not None:
        most = tomllib.loads(given.cap.read_text(encoding="utf-8"))["tool"]["tclab"]["code_lines_at_most"]
        print(f"{most:,} at most, by code_lines_at_most in {given.cap}")
        sys.exit(total > most)


if __name__ == "__main__":
    main()
