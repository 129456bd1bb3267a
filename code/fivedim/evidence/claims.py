"""configs/claims.yaml: what is claimed, which rows answer it and how near is near enough. Checked before any job."""

import math
import string
from collections import Counter
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from fivedim.errors import UserError
from fivedim.lab import config
from fivedim.lab.config import Strict

Kind = Literal["exact", "rehearsed", "emulated", "predicted", "measured"]
Reduction = Literal["only", "sum", "mean", "median", "min", "max", "max_abs", "count", "all"]
KINDS: tuple[str, ...] = get_args(Kind)  # from the strongest to the weakest

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 .,:;()+*=<>/|@'_-]*$")]  # what a LaTeX csname can hold
Finite = Annotated[float, Field(allow_inf_nan=False)]
Cell = str | bool | int | float


class Band(Strict):
    """How far a value may lie from its target: abs + rel * |target|."""

    abs: float = Field(0, ge=0, allow_inf_nan=False)
    rel: float = Field(0, ge=0, allow_inf_nan=False)

    def holds(self, value: float, target: float) -> bool:
        distance, limit = abs(value - target), self.abs + self.rel * abs(target)
        return distance <= limit or math.isclose(
            distance, limit
        )  # 1.85 is within 0.1 of 1.75; a limit of 0 stays exact

    def __str__(self) -> str:
        return " + ".join(f"{key} {getattr(self, key):g}" for key in ("abs", "rel") if key in self.model_fields_set)


class Tolerance(Band):
    """Within the band itself a value `holds`; within `shape`, the wider band, it `holds in shape`."""

    shape: Band | None = None

    @model_validator(mode="after")
    def _says_how_far(self) -> Self:
        if not self.model_fields_set & {"abs", "rel"}:
            raise ValueError("give abs or rel")
        return self

    @property
    def near(self) -> str:
        return super().__str__()

    def __str__(self) -> str:
        return f"{self.near}; shape {self.shape}" if self.shape else self.near


class Quantity(Strict):
    """One number of a claim: how it is read off the experiment's rows, and what it is compared with."""

    name: Name
    where: dict[str, Cell | list[Cell]] = {}
    column: str | None = None
    reduce: Reduction | None = None
    derive: str | None = None
    unit: str = ""
    reported: Finite | None = None
    expected: Finite | None = None
    tolerance: Tolerance | None = None
    decides: bool = True  # false: shown, and kept out of the verdict

    @property
    def target(self) -> tuple[str, float] | None:
        """What the value is compared with: the reported number, or the expected one where none is reported."""
        pairs = (("reported", self.reported), ("expected", self.expected))
        return next(((word, number) for word, number in pairs if number is not None), None)

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if (self.column is None) != (self.reduce is None) or (self.column is None) == (self.derive is None):
            raise ValueError("give either column and reduce, or derive")
        if self.decides and not (self.target and self.tolerance):
            raise ValueError("give reported or expected, and a tolerance, or nothing can decide the verdict")
        return self


class Evidence(Strict):
    """How one kind of evidence answers the claim: an experiment, its headline quantity and further parts."""

    experiment: str
    headline: Quantity
    parts: list[Quantity] = []
    instead: str = ""

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        if not self.headline.decides:
            raise ValueError("the headline decides: make it a part, or leave out `decides`")
        twice = [name for name, count in Counter(part.name for part in self.parts).items() if count > 1]
        if twice:
            raise ValueError(f"two parts are named {twice[0]!r}: rename one")
        given = {"value"} | {word for word in ("reported", "expected") if getattr(self.headline, word) is not None}
        for _, field, _, _ in string.Formatter().parse(self.instead):
            if field is not None and field not in given:
                raise ValueError(f"instead uses {{{field}}}: use {', '.join(sorted(given))}")
        return self


class Claim(Strict):
    """One claim of an article with its evidence, by kind."""

    id: str = Field(pattern=r"^\d+\.\d+$")
    article: int
    statement: str
    conditions: str = ""
    evidence: dict[Kind, Evidence] = Field(min_length=1)

    @model_validator(mode="after")
    def _belongs_to_its_article(self) -> Self:
        if self.id.split(".")[0] != str(self.article):
            raise ValueError(f"claim {self.id} stands under article {self.article}: the id starts with the article")
        return self

    def kinds(self) -> list[tuple[str, Evidence]]:
        """The kinds of evidence, from the strongest to the weakest."""
        return sorted(self.evidence.items(), key=lambda pair: KINDS.index(pair[0]))


def read(root: Path) -> list[Claim]:
    """Every claim, ordered by id. Raises UserError naming file, claim and key for a fault in it or across files."""
    path = root / "configs/claims.yaml"
    claims = config.read(path, list[Claim])
    for claim, count in Counter(claim.id for claim in claims).items():
        if count > 1:
            raise UserError(f"{path}: claim {claim} stands there {count} times: keep one")
    known = config.experiments(root)
    for claim in claims:
        for kind, evidence in claim.kinds():
            if evidence.experiment not in known:
                raise UserError(
                    f"{path}: claim {claim.id}, {kind}: experiment {evidence.experiment!r} is not in experiments.yaml; "
                    f"use one of {', '.join(sorted(known))}"
                )
    return sorted(claims, key=lambda claim: tuple(int(part) for part in claim.id.split(".")))


def experiments(claims: list[Claim]) -> list[str]:
    """The experiments that answer the claims."""
    return sorted({evidence.experiment for claim in claims for evidence in claim.evidence.values()})
