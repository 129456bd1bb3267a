"""paper/generated/*.tex: numbers, claims tables, provenance. The same results give the same bytes."""

import re
from collections import Counter
from itertools import groupby
from typing import Any

from fivedim.evidence.claims import KINDS, Claim
from fivedim.evidence.judge import REFUTED, UNTESTED, VERDICTS
from fivedim.evidence.tables import rounded

Row = dict[str, str]

HEADER = "% Written by `fivedim tables` from results/{scale}/: do not edit.\n"

RESULT = r"""\sisetup{group-digits=integer}  % 0.3333, never 0.333,3
\makeatletter
\NewDocumentCommand{\result}{m}{\ifcsname fivedim@#1\endcsname\csname fivedim@#1\endcsname\else
  \PackageError{fivedim}{There is no result '#1'}{The keys are in paper/generated/numbers.tex.}\fi}
\newcommand{\fivedim@number}[2]{\expandafter\def\csname fivedim@#1\endcsname{#2}}
"""

COMPARED = ("Evidence", "Reported", "Expected", "Ours", "Tolerance", "Verdict")
RAGGED = r">{\raggedright\arraybackslash}"

SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}",
}  # fmt: skip


SYMBOLS = {"*": r"$\cdot$", "Psi": r"$\Psi$"}  # how claims write them


def escape(text: Any) -> str:
    return "".join(SPECIAL.get(letter, letter) for letter in str(text))


def prose(text: str) -> str:
    """A claim's words, its symbols as mathematics."""
    return re.sub("|".join(map(re.escape, SYMBOLS)), lambda found: SYMBOLS[found[0]], escape(text))


def unit(text: str) -> str:
    """A unit as it is set: ASCII in the configuration."""
    return r"\textmu{}s" if text == "us" else prose(text)


def band(tolerance: str) -> str:
    """A tolerance as claims.csv has it, `rel 0.1; shape rel 0.25`, as 10 % (25 %); an absolute one is a number."""
    near, _, shape = tolerance.partition("; shape ")
    return " ".join(filter(None, [_width(near), rf"({_width(shape)})" if shape else ""]))


def _width(text: str) -> str:
    """`abs 0.1`, `rel 0.1`, or both joined by ` + `."""
    parts = [each.split() for each in text.split(" + ") if each]
    return " + ".join(
        rf"\num{{{value}}}" if key == "abs" else rf"\qty{{{100 * float(value):g}}}{{\percent}}" for key, value in parts
    )


def number(cell: str, missing: str = "--") -> str:
    """A cell of claims.csv for siunitx, or `missing` where it is empty."""
    return rf"\num{{{rounded(cell)}}}" if cell else missing


def documents(
    declared: list[Claim],
    headlines: list[Row],
    parts: list[Row],
    scale: str,
    provenance: list[dict[str, Any]],
    sizes: list[dict[str, Any]],
) -> dict[str, str]:
    """Every generated file by name.

    `headlines` and `parts` are the rows of claims.csv and claims_parts.csv, `provenance` the results' JSON files,
    `sizes` the rows of lab.loc.sizes.
    """
    by_article = groupby(headlines, key=lambda row: row["article"])
    files = {f"claims_a{int(article):02}": claims_table(declared, list(rows)) for article, rows in by_article}
    files |= {
        "parts": parts_table(declared, parts),
        "summary": summary(headlines),
        "numbers": numbers(headlines, parts),
    }
    files |= {"provenance": provenance_table(scale, provenance), "loc": sizes_table(sizes)}
    return {f"{name}.tex": HEADER.format(scale=scale) + text for name, text in files.items()}


def numbers(headlines: list[Row], parts: list[Row]) -> str:
    r"""One csname a number; \result{2.2/exact/value} prints it, \result{2.2/exact/<part>/value} a part's."""
    keyed = [(f"{row['claim']}/{row['evidence']}", row) for row in headlines]
    keyed += [(f"{row['claim']}/{row['evidence']}/{row['part']}", row) for row in parts]
    lines = [
        rf"\fivedim@number{{{key}/{field}}}{{{text}}}" for key, row in keyed for field, text in fields(row).items()
    ]
    return RESULT + "\n".join(lines) + "\n\\makeatother\n"


def fields(row: Row) -> dict[str, str]:
    """What \\result can print of a row: a number that was not given is not defined, so that using it is an error."""
    given = {key: number(row[key]) for key in ("reported", "expected") if row[key]}
    words = {"unit": unit(row["unit"]), "verdict": escape(row["verdict"])}
    return {"value": number(row["value"], "not testable here")} | given | words


def claims_table(declared: list[Claim], rows: list[Row]) -> str:
    """One article's claims over the text's width: the statement, a line for each kind of evidence, why it fails."""
    head = ("Claim", "Statement; quantity [unit]", *COMPARED)
    names = {(claim.id, kind): evidence.headline.name for claim in declared for kind, evidence in claim.kinds()}
    notes = [row["why"] if row["verdict"] in (REFUTED, UNTESTED) else "" for row in rows]
    quantities = [(names[row["claim"], row["evidence"]], note, row) for row, note in zip(rows, notes, strict=True)]
    body = grouped({claim.id: claim.statement for claim in declared}, quantities)
    return tabular("tabularx", rf"l{RAGGED}Xlrrrr{RAGGED}p{{5.4em}}", head, body, width=r"{\linewidth}")


def parts_table(declared: list[Claim], rows: list[Row]) -> str:
    """The conditions of every claim and its further quantities, over several pages of one-column text."""
    head = ("Claim", "Conditions; quantity [unit]", *COMPARED)
    texts = {claim.id: claim.conditions or claim.statement for claim in declared}
    body = grouped(texts, [(row["part"], "", row) for row in rows])
    return tabular("longtable", rf"l{RAGGED}p{{0.35\linewidth}}lrrrr{RAGGED}p{{5.4em}}", head, body, repeat=r"\endhead")


def grouped(texts: dict[str, str], quantities: list[tuple[str, str, Row]]) -> str:
    """A block a claim: its id and text, then a line for each (name, note, row), the note on a line of its own."""
    blocks = []
    for claim, group in groupby(quantities, key=lambda each: each[2]["claim"]):
        lines = [line(claim, prose(texts[claim]), *[""] * len(COMPARED))]
        for name, note, row in group:
            lines.append(line("", with_unit(name, row["unit"]), rf"\textit{{{row['evidence']}}}", *compared(row)))
            lines += [line("", rf"\textit{{{prose(note)}}}", *[""] * len(COMPARED))] if note else []
        blocks.append("\n".join(lines))
    return "\n\\addlinespace\n".join(blocks)


def with_unit(text: str, measure: str) -> str:
    return f"{prose(text)} [{unit(measure)}]" if measure else prose(text)


def compared(row: Row) -> list[str]:
    numbers = [number(row[key]) for key in ("reported", "expected", "value")]
    return [*numbers, band(row["tolerance"]), escape(row["verdict"] or "shown")]


def line(*cells: str) -> str:
    return " & ".join(cells) + r" \\"


def tabular(name: str, columns: str, head: tuple[str, ...], body: str, width: str = "", repeat: str = "") -> str:
    """A booktabs table of environment `name`; `repeat` ends the part of a longtable that stands on every page."""
    lines = [
        rf"\begin{{{name}}}{width}{{@{{}}{columns}@{{}}}}",
        r"\toprule",
        *([line(*head), r"\midrule"] if head else []),
    ]
    return "\n".join([*lines, *([repeat] if repeat else []), body, r"\bottomrule", rf"\end{{{name}}}", ""])


def summary(headlines: list[Row]) -> str:
    """How many claims came to which verdict, by kind of evidence."""
    counts = Counter((row["evidence"], row["verdict"]) for row in headlines)
    kinds = [kind for kind in KINDS if any(kind == each for each, _ in counts)]
    table = {kind: [counts[kind, verdict] for verdict in VERDICTS] for kind in kinds}
    table["all"] = [sum(column) for column in zip(*table.values(), strict=True)]
    lines = [line(kind, *map(str, row), str(sum(row))) for kind, row in table.items()]
    head = ("Evidence", "holds", "in shape", "not testable", "refuted", "all")
    return tabular("tabular", "l" + "r" * (len(head) - 1), head, "\n".join([*lines[:-1], r"\midrule", lines[-1]]))


def provenance_table(scale: str, records: list[dict[str, Any]]) -> str:
    """What the results were computed on and with: no dates and no seconds."""
    facts: dict[str, dict[str, None]] = {"scale": {scale: None}, "experiments": {str(len(records)): None}}
    for record in records:
        for key, value in {"executor": record["executor"], **record["hardware"], **record["versions"]}.items():
            name, value = (key[:-6], f"{value / 2**30:.0f} GiB") if key.endswith("_bytes") else (key, value or "none")
            facts.setdefault(name, {})[", ".join(value) if isinstance(value, list) else str(value)] = None
    body = "\n".join(line(escape(key), escape(", ".join(values))) for key, values in facts.items())
    return tabular("tabular", rf"l{RAGGED}p{{0.65\linewidth}}", (), body)


def sizes_table(sizes: list[dict[str, Any]]) -> str:
    """Our code lines a room, and the published sizes of those that are a technique."""
    ours = {True: [], False: []}
    for row in sizes:
        published = [
            f"{number(row[size])} ({escape(row[f'{size}_source'])})" if row[size] else "--"
            for size in ("smallest", "large")
        ]
        named = f"{row['room']}, {row['technique']}" if row["technique"] else row["room"]
        ours[bool(row["technique"])].append(
            line(escape(named), number(str(row["lines"])), number(row["budget"]), *published)
        )
    body = "\n".join([*ours[True], r"\midrule", *ours[False]])
    return tabular("tabular", "lrrll", ("Room", "Ours", "Budget", "Smallest credible", "In production"), body)
