"""results/<scale>/claims.csv and claims_parts.csv: written whole or not at all, read back as text, shown."""

import csv
import io
import re
from pathlib import Path
from typing import Any

from fivedim.errors import FAILED, UserError

SHOWN = ("claim", "statement", "reported", "expected", "value", "unit", "verdict", "evidence")


def to_csv(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a claims table, every cell as text. Raises UserError where the table is not there."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        raise UserError(f"{path}: no such table: run `snakemake --config scale={path.parent.name}`", FAILED) from None


def rounded(cell: str) -> str:
    """A number for a reader: whole ones as they are, others to 4 digits or to the unit; the CSV has all."""
    if not cell or cell.lstrip("-").isdigit():
        return cell
    return f"{float(cell):.0f}" if 1e4 <= abs(float(cell)) < 1e9 else f"{float(cell):.4g}"


def markdown(rows: list[dict[str, str]]) -> str:
    """The table for a README."""
    lines = ["| " + " | ".join(SHOWN) + " |", "|" + " --- |" * len(SHOWN)]
    lines += ["| " + " | ".join(re.sub(r"([|*])", r"\\\1", cell) for cell in shown(row)) + " |" for row in rows]
    return "\n".join(lines)


def shown(row: dict[str, str]) -> list[str]:
    return [rounded(row[key]) if key in ("reported", "expected", "value") else row[key] for key in SHOWN]


def render(rows: list[dict[str, str]], title: str):
    """A rich table: a claim's statement stands once and wraps, everything else stays on its line."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for key in SHOWN:
        numeric = key in ("reported", "expected", "value")
        table.add_column(key, justify="right" if numeric else "left", no_wrap=key != "statement")
    for row, before in zip(rows, [None, *rows], strict=False):
        told = before is not None and before["claim"] == row["claim"]
        table.add_row(
            *shown(row | {"statement": ""} if told else row),
            style=None if row["verdict"].startswith("holds") else "yellow",
        )
    return table
