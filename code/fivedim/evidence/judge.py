"""Claims and results in, verdicts out: what the rows say, compared with what is reported. Nothing here is typed in."""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fivedim.errors import FAILED, UserError
from fivedim.evidence.claims import Claim, Evidence, Quantity
from fivedim.evidence.results import Result

HOLDS, SHAPE, REFUTED, UNTESTED = "holds", "holds in shape", "refuted as stated", "not testable here"
VERDICTS = (HOLDS, SHAPE, UNTESTED, REFUTED)  # from the best to the worst: one refuted quantity refutes its claim

HEADLINE_COLUMNS = (
    "claim", "article", "statement", "evidence", "reported", "expected", "value", "unit", "tolerance", "verdict",
    "why", "experiment", "seconds",
)  # fmt: skip
PART_COLUMNS = (
    "claim", "evidence", "part", "reported", "expected", "value", "unit", "tolerance", "verdict", "why", "experiment",
)  # fmt: skip

Derive = Callable[
    [str, str], Callable[[pd.DataFrame], float]
]  # (experiment, function's name) -> the article's function


@dataclass(frozen=True)
class Judged:
    """A quantity with its value (None where the instrument is missing), its verdict and the reason in words."""

    quantity: Quantity
    value: float | None
    verdict: str
    why: str


def judge(
    claims: list[Claim], results: dict[str, Result], derive: Derive
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of claims.csv and of claims_parts.csv, in the order of the claims.

    `results` are by experiment. Raises UserError naming claim, quantity, column and file where the rows do not answer.
    """
    headlines, parts = [], []
    for claim in claims:
        for kind, evidence in claim.kinds():
            result = results[evidence.experiment]
            judged = [_judged(claim, kind, each, result, derive) for each in (evidence.headline, *evidence.parts)]
            headlines.append(_headline_row(claim, kind, evidence, judged, result))
            parts += [_part_row(claim, kind, evidence, part) for part in judged[1:]]
    return headlines, parts


def _judged(claim: Claim, kind: str, quantity: Quantity, result: Result, derive: Derive) -> Judged:
    value = read_off(quantity, result, derive, f"{result.path}: claim {claim.id}, {kind}, {quantity.name!r}")
    if isinstance(value, str):
        return Judged(quantity, None, UNTESTED, f"{quantity.name}: {value}")
    if quantity.target is None or quantity.tolerance is None:
        return Judged(quantity, value, "", "shown, not judged")
    return Judged(quantity, value, *verdict(quantity, value))


def verdict(quantity: Quantity, value: float) -> tuple[str, str]:
    """The verdict on one value and the reason in words."""
    (word, target), band = quantity.target, quantity.tolerance
    said = f"{quantity.name}: {short(value)} against {short(target)} {word}"
    if band.holds(value, target):
        return HOLDS, f"{said}, within {band.near}"
    if band.shape and band.shape.holds(value, target):
        return SHAPE, f"{said}, outside {band.near} but within {band.shape}"
    return REFUTED, f"{said}, outside {band.shape or band.near}"


def read_off(quantity: Quantity, result: Result, derive: Derive, where: str) -> float | str:
    """The quantity's value, or what the instrument lacks (a string). `where` begins the message of a UserError."""
    rows = result.rows
    lacking = set() if "unavailable" not in rows else set(rows["unavailable"].dropna())
    columns = [*quantity.where, *([quantity.column] if quantity.column else [])]
    missing = [column for column in columns if column not in rows]
    if missing and not lacking:
        raise UserError(f"{where}: no column {missing[0]!r}; there are {', '.join(map(str, rows.columns))}", FAILED)
    chosen = rows.iloc[:0] if missing else select(rows, quantity.where)
    if lacking and (chosen.empty or chosen["unavailable"].notna().any()):
        return str(min(lacking if chosen.empty else set(chosen["unavailable"].dropna())))
    if chosen.empty and quantity.reduce != "count":
        raise UserError(f"{where}: no row has {quantity.where}: correct `where` or the experiment", FAILED)
    if quantity.derive:
        return finite(derive(result.experiment, quantity.derive)(chosen), f"{where}, {quantity.derive}()")
    return reduced(quantity.reduce, [*chosen[quantity.column]], f"{where}, column {quantity.column!r}")


def select(rows: pd.DataFrame, where: dict[str, Any]) -> pd.DataFrame:
    """The rows whose cells equal the given values; a list means any of them."""
    for column, wanted in where.items():
        rows = rows[rows[column].isin(wanted if isinstance(wanted, list) else [wanted])]
    return rows


def reduced(how: str, cells: list[Any], where: str) -> float:
    """One number from a column's cells. Raises UserError for an empty, non-numeric or non-finite cell."""
    if how == "count":
        return float(len(cells))
    values = [finite(cell, where) for cell in cells]
    if how == "only" and len(values) > 1:
        raise UserError(f"{where}: {len(values)} rows where `only` wants one: narrow `where`", FAILED)
    reductions = {
        "only": lambda: values[0], "sum": lambda: math.fsum(values), "mean": lambda: statistics.fmean(values),
        "median": lambda: statistics.median(values), "min": lambda: min(values), "max": lambda: max(values),
        "max_abs": lambda: max(map(abs, values)), "all": lambda: float(all(values)),
    }  # fmt: skip
    return reductions[how]()


def finite(cell: Any, where: str) -> float:
    try:
        value = float(cell)
    except (TypeError, ValueError):
        raise UserError(f"{where}: {cell!r} is not a number", FAILED) from None
    if not math.isfinite(value):
        raise UserError(f"{where}: a cell is {'empty or NaN' if math.isnan(value) else value}", FAILED)
    return value


def _headline_row(claim: Claim, kind: str, evidence: Evidence, judged: list[Judged], result: Result) -> dict[str, Any]:
    deciding = [each for each in judged if each.quantity.decides]
    worst = max(deciding, key=lambda each: VERDICTS.index(each.verdict))  # of equals the first: the headline
    why = worst.why
    if worst.verdict == REFUTED and evidence.instead and judged[0].value is not None:
        why += f". {filled(evidence.instead, judged[0])}"
    head = _cells(judged[0]) | {"verdict": worst.verdict, "why": why}
    named = {"claim": claim.id, "article": claim.article, "statement": claim.statement, "evidence": kind}
    row = named | head | {"experiment": result.experiment, "seconds": text(result.provenance.get("seconds"))}
    return {column: row[column] for column in HEADLINE_COLUMNS}


def _part_row(claim: Claim, kind: str, evidence: Evidence, part: Judged) -> dict[str, Any]:
    named = {"claim": claim.id, "evidence": kind, "part": part.quantity.name, "experiment": evidence.experiment}
    row = named | _cells(part)
    return {column: row[column] for column in PART_COLUMNS}


def _cells(judged: Judged) -> dict[str, str]:
    quantity = judged.quantity
    numbers = {"reported": quantity.reported, "expected": quantity.expected, "value": judged.value}
    words = {"unit": quantity.unit, "tolerance": str(quantity.tolerance or ""), "verdict": judged.verdict}
    return {key: text(number) for key, number in numbers.items()} | words | {"why": judged.why}


def filled(instead: str, headline: Judged) -> str:
    """The text with {value}, {reported} and {expected} of the headline put in."""
    given = {"value": headline.value, "reported": headline.quantity.reported, "expected": headline.quantity.expected}
    return instead.format(**{word: Number(number) for word, number in given.items() if number is not None})


class Number(float):
    """A float that prints short unless a format is given: {value} or {value:.3f}."""

    def __format__(self, spec: str) -> str:
        return super().__format__(spec) if spec else short(self)


def short(value: float) -> str:
    return text(value) if float(value).is_integer() else f"{value:.6g}"


def text(value: float | None) -> str:
    """A number as it stands in a CSV: whole numbers without a point, others by repr, nothing for None."""
    if value is None:
        return ""
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))
