"""Sizes: code lines of every room beside the technique's published sizes; `python -m fivedim.lab.loc` prints them."""

import ast
import csv
import io
import tokenize
from pathlib import Path

from fivedim.lab.config import find_root
from fivedim.lab.fingerprint import PACKAGE

SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
COLUMNS = ("room", "technique", "lines", "budget", "smallest", "smallest_source", "large", "large_source")


def code_lines(source: str) -> int:
    """The lines that hold code: no blanks, comments or docstrings."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    held = {line for token in tokens if token.type not in SILENT for line in range(token.start[0], token.end[0] + 1)}
    return len(held - docstring_lines(source))


def docstring_lines(source: str) -> set[int]:
    """The lines of the docstrings of a module, its classes and its functions."""
    owners = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    texts = [node.body[0] for node in owners if ast.get_docstring(node, clean=False) is not None]
    return {line for text in texts for line in range(text.lineno, text.end_lineno + 1)}


def room_of(file: Path) -> str:
    """The room of a file: its folder in the package, or its own name at the package's top."""
    inside = file.relative_to(PACKAGE)
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem


def rooms() -> dict[str, int]:
    """Code lines of every room of the package."""
    total: dict[str, int] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        total[room_of(file)] = total.get(room_of(file), 0) + code_lines(file.read_text(encoding="utf-8"))
    return {room: lines for room, lines in total.items() if lines}


def sizes(root: Path) -> list[dict[str, str | int]]:
    """One row a room (columns COLUMNS): ours, and the published sizes of configs/reported/sizes.csv."""
    with (root / "configs/reported/sizes.csv").open(newline="", encoding="utf-8") as file:
        published = {row["room"]: row for row in csv.DictReader(file)}
    empty = dict.fromkeys(COLUMNS, "")
    return [empty | published.get(room, {}) | {"room": room, "lines": lines} for room, lines in rooms().items()]


def main() -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*COLUMNS)
    for row in sizes(find_root()):
        table.add_row(*(str(row[column]) for column in COLUMNS))
    Console().print(table)


if __name__ == "__main__":
    main()
