"""The audit: every cell of the claims tables, every generated file and the PDF, again from the result files."""

import csv
import math
import re
import shutil
import statistics
import subprocess
from pathlib import Path
from typing import Any

from fivedim.errors import UserError
from fivedim.evidence import claims, judge, latex, libraries, results, tables
from fivedim.evidence.claims import Claim, Quantity
from fivedim.lab import loc, spec


def differences(root: Path, scale: str, derive: judge.Derive) -> list[str]:
    """One line for each thing that is not as the result files say."""
    declared = claims.read(root)
    try:
        found = results.load_all(root, scale, claims.experiments(declared))
        computed = judge.judge(declared, found, derive)
    except UserError as error:
        return [str(error)]
    folder = results.folder(root, scale)
    written = [tables.read(folder / name) for name in ("claims.csv", "claims_parts.csv")]
    faults = [fault for name, result in found.items() for fault in stale(root, scale, name, result.provenance)]
    for name, now, then in zip(("claims.csv", "claims_parts.csv"), computed, written, strict=True):
        faults += compare(folder / name, now, then)
    faults += [fault for claim in declared for fault in reread(claim, found)]
    provenance = [found[name].provenance for name in sorted(found)]
    documents = latex.documents(declared, *as_text(computed), scale, provenance, loc.sizes(root))
    documents |= libraries.documents(found, scale)
    faults += [f for name, text in documents.items() if (f := differs(root / "paper/generated" / name, text))]
    return faults + printed(root / "paper/paper.pdf", as_text(computed)[0])


def as_text(computed: tuple[list[dict[str, Any]], ...]) -> list[list[dict[str, str]]]:
    return [[{key: str(cell) for key, cell in row.items()} for row in rows] for rows in computed]


def stale(root: Path, scale: str, name: str, provenance: dict[str, Any]) -> list[str]:
    key = spec.resolve(root, name, scale).key
    if provenance.get("key") == key:
        return []
    return [f"results/{scale}/{name}.json: has key {provenance.get('key')}, the sources and parameters now have {key}"]


def compare(path: Path, computed: list[dict[str, Any]], written: list[dict[str, str]]) -> list[str]:
    """Cell by cell; a row is named by its claim, evidence and part."""
    if len(computed) != len(written):
        return [f"{path}: {len(written)} rows where the results give {len(computed)}"]
    return [
        f"{path}: claim {now['claim']}, {now['evidence']}, {now.get('part', 'headline')}: {column} is "
        f"{then.get(column)!r} where the results give {str(now[column])!r}"
        for now, then in zip(computed, written, strict=True)
        for column in now
        if str(now[column]) != then.get(column)
    ]


def reread(claim: Claim, found: dict[str, results.Result]) -> list[str]:
    """Read the values off the CSV a second time, by other means than the judge's."""
    faults = []
    for kind, evidence in claim.kinds():
        result = found[evidence.experiment]
        with result.path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        for quantity in (evidence.headline, *evidence.parts):
            first = judge.read_off(quantity, result, lambda *_: lambda rows: 0.0, str(result.path))
            second = None if isinstance(first, str) else plain(quantity, rows)
            if second is not None and not math.isclose(first, second, rel_tol=1e-12):
                faults.append(
                    f"{result.path}: claim {claim.id}, {kind}, {quantity.name}: read as {first} and as {second}"
                )
    return faults


def plain(quantity: Quantity, rows: list[dict[str, str]]) -> float | None:
    """The quantity's value with the standard library alone; None where only the article's own function gives it."""
    if quantity.derive or quantity.column is None:
        return None
    cells = [row[quantity.column] for row in rows if all(same(row[key], want) for key, want in quantity.where.items())]
    if quantity.reduce == "count":
        return float(len(cells))
    values = [{"True": 1.0, "False": 0.0}.get(cell) if cell in ("True", "False") else float(cell) for cell in cells]
    reductions = {
        "only": statistics.fmean, "mean": statistics.fmean, "sum": sum, "median": statistics.median, "min": min,
        "max": max, "max_abs": lambda each: max(abs(value) for value in each), "all": lambda each: float(all(each)),
    }  # fmt: skip
    return float(reductions[quantity.reduce](values))


def same(cell: str, wanted: Any) -> bool:
    """Whether a cell of the CSV says what `where` asks for."""
    if isinstance(wanted, list):
        return any(same(cell, each) for each in wanted)
    if isinstance(wanted, str | bool):
        return cell == str(wanted)
    return bool(re.fullmatch(r"[-+.\deE]+", cell)) and float(cell) == wanted


def differs(path: Path, text: str) -> str | None:
    if not path.is_file():
        return f"{path}: is not there: run snakemake"
    return None if path.read_text(encoding="utf-8") == text else f"{path}: is not what the results give"


def printed(pdf: Path, headlines: list[dict[str, str]]) -> list[str]:
    """The PDF, where there is one, must show every headline value."""
    if not pdf.is_file():
        return []
    if not shutil.which("pdftotext"):
        return [f"{pdf}: cannot be read without pdftotext: install poppler-utils"]
    text = subprocess.run(["pdftotext", str(pdf), "-"], capture_output=True, text=True, check=True).stdout
    return [
        f"{pdf}: does not show {tables.rounded(row['value'])}, the value of claim {row['claim']} ({row['evidence']})"
        for row in headlines
        if row["value"] and not re.search(pattern(tables.rounded(row["value"])), text)
    ]


def pattern(number: str) -> str:
    """A regular expression for a number as siunitx prints it: grouped digits, a typographic minus, a power of ten."""
    mantissa, _, exponent = number.partition("e")
    digits = r"[,\s]?".join(re.escape(letter) for letter in mantissa.lstrip("-"))
    sign = r"[-−]\s*" if mantissa.startswith("-") else ""
    power = rf"\s*×\s*10\s*{'[-−]' if int(exponent) < 0 else ''}\s*{abs(int(exponent))}" if exponent else ""
    return rf"(?<![\d.]){sign}{digits}{power}(?!\d|[.,]\d)"
