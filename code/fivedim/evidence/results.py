"""results/<scale>/<experiment>.csv and .json: read once, checked against each other. No torch here."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fivedim.errors import FAILED, UserError
from fivedim.lab.results import SCHEMA


@dataclass(frozen=True)
class Result:
    """An experiment's rows and where they come from."""

    experiment: str
    path: Path
    rows: pd.DataFrame
    provenance: dict[str, Any]


def folder(root: Path, scale: str) -> Path:
    return root / "results" / scale


def load(root: Path, scale: str, experiment: str) -> Result:
    """Read one result. Raises UserError where a file is missing, unreadable or not what its JSON describes."""
    path = folder(root, scale) / f"{experiment}.csv"
    again = f"delete it and run `snakemake --config scale={scale}` again"
    try:
        data, provenance = path.read_bytes(), json.loads(path.with_suffix(".json").read_text())
    except FileNotFoundError as missing:
        raise UserError(f"{missing.filename}: no such result: run `snakemake --config scale={scale}`", FAILED) from None
    except ValueError as error:
        raise UserError(f"{path.with_suffix('.json')}: not JSON ({error}): {again}", FAILED) from None
    for field, wanted in (("experiment", experiment), ("schema", SCHEMA)):
        if provenance.get(field) != wanted:
            found = provenance.get(field)
            raise UserError(f"{path.with_suffix('.json')}: {field} is {found!r}, not {wanted!r}: {again}", FAILED)
    if hashlib.sha256(data).hexdigest() != provenance.get("checksum"):
        raise UserError(f"{path}: is not the file that its JSON describes (checksum): {again}", FAILED)
    return Result(experiment, path, frame(path), provenance)


def frame(path: Path) -> pd.DataFrame:
    """The CSV's rows: only an empty cell is missing, floats are read to the last bit."""
    try:
        return pd.read_csv(path, keep_default_na=False, na_values=[""], low_memory=False)
    except pd.errors.EmptyDataError:
        return pd.DataFrame()


def load_all(root: Path, scale: str, experiments: Iterable[str]) -> dict[str, Result]:
    return {name: load(root, scale, name) for name in sorted(set(experiments))}
