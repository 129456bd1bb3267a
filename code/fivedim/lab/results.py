"""Results: a run's rows, checked, stored as result.json, published as results/<scale>/<experiment>.csv and .json."""

import csv
import hashlib
import io
import json
import math
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from fivedim.errors import FAILED, UserError
from fivedim.lab import files
from fivedim.lab.config import Strict, explain
from fivedim.lab.spec import Spec

SCHEMA = 1
Row = dict[str, str | bool | int | float]


class Result(Strict):
    """result.json. `started` is UTC (ISO 8601); `seconds` is the ranks' time, `ready` the part until all had joined."""

    schema_version: int = Field(alias="schema")
    key: str
    experiment: str
    rows: list[Row]
    checksum: str
    started: str
    seconds: float
    ready: float
    ranks: int
    nodes: int
    executor: str
    job_id: str
    hardware: dict[str, Any]
    versions: dict[str, str]
    commit: str | None
    fingerprint: str
    config: dict[str, Any]
    seeds: dict[str, Any]


def checked(rows: Any) -> list[Row]:
    """`rows` in plain types, if each is a flat dict of str, bool, int, finite float. UserError names a column."""
    if not isinstance(rows, list) or not rows:
        raise UserError("the experiment returned no rows: return a non-empty list of dicts", FAILED)
    for number, row in enumerate(rows):
        for column, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise UserError(f"column {column}: {value} in row {number}: a result must be finite", FAILED)
            if not isinstance(value, (str, bool, int, float)):
                raise UserError(
                    f"column {column}: a {type(value).__name__} in row {number}: use str, int, float", FAILED
                )
    return json.loads(json.dumps(rows))


def table(rows: list[Row]) -> str:
    """The rows as CSV: columns in order of first appearance, floats by repr, an absent cell empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(column for row in rows for column in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def checksum(rows: list[Row]) -> str:
    """sha256 (hex) of the rows' CSV, hence of the published file."""
    return hashlib.sha256(table(rows).encode()).hexdigest()


def read(path: Path, spec: Spec) -> dict[str, Any]:
    """The result at `path`, for `spec`. Raises UserError: empty, truncated, another run's, another schema, altered."""
    data = files.read_json(path)
    try:
        result = Result.model_validate(data)
        checked(data["rows"])
    except ValidationError as error:
        raise UserError(f"{path}: {explain(error, data, Result)}") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    if result.schema_version != SCHEMA:
        raise UserError(f"{path}: schema {result.schema_version}, not {SCHEMA}")
    if result.key != spec.key:
        raise UserError(f"{path}: it has the key of another run, {result.key}")
    if result.checksum != checksum(data["rows"]):
        raise UserError(f"{path}: the rows do not match their checksum")
    return data


def publish(root: Path, scale: str, result: dict[str, Any]) -> None:
    """Write results/<scale>/<experiment>.csv (the rows) and .json (everything else); each is whole or untouched."""
    folder = root / "results" / scale
    folder.mkdir(parents=True, exist_ok=True)
    rest = {key: value for key, value in result.items() if key != "rows"}
    files.write_json(folder / f"{result['experiment']}.json", rest)
    files.write(folder / f"{result['experiment']}.csv", table(result["rows"]))
