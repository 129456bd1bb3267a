"""A small project on disk: claims, experiments, and results as the launcher writes them."""

import csv
import hashlib
import json
from pathlib import Path

import yaml

ROWS = [
    {"op": "all_reduce", "ranks": 8, "units": 1.75, "bytes": 1792, "equal": True},
    {"op": "all_reduce", "ranks": 4, "units": 1.5, "bytes": 1536, "equal": True},
    {"op": "gather", "ranks": 8, "units": 0.125, "bytes": 128, "equal": False},
]
HEADLINE = {
    "name": "all-reduce at N=8", "where": {"op": "all_reduce", "ranks": 8}, "column": "units", "reduce": "only",
    "unit": "S", "reported": 1.75, "expected": 1.75, "tolerance": {"abs": 0},
}  # fmt: skip


def claim(headline=None, parts=(), **more):
    evidence = {"experiment": "volumes", "headline": HEADLINE | (headline or {}), "parts": list(parts)}
    return {
        "id": "2.2",
        "article": 2,
        "statement": "Ring all-reduce sends 2(N-1)/N*S",
        "evidence": {"exact": evidence | more},
    }


def write(root: Path, claims: list, rows: list = ROWS, scale: str = "smoke") -> Path:
    (root / "configs/scales").mkdir(parents=True, exist_ok=True)
    (root / "Snakefile").touch()
    (root / "configs/reported").mkdir(exist_ok=True)
    (root / "configs/reported/sizes.csv").write_text(
        "technique,room,smallest,smallest_source,large,large_source,budget\n"
    )
    volumes = {"module": "a02_allreduce", "title": "Volumes", "instrument": "meter", "rooms": []}
    (root / "configs/experiments.yaml").write_text(yaml.safe_dump({"volumes": volumes}))
    (root / "configs/claims.yaml").write_text(yaml.safe_dump(claims))
    (root / f"configs/scales/{scale}.yaml").write_text("description: small\n")
    result(root / f"results/{scale}/volumes.csv", rows)
    return root


def result(path: Path, rows: list, **more) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    described(path, **more)


def described(path: Path, **more) -> None:
    """Write the JSON that describes the CSV as it is now."""
    facts = {
        "schema": 1, "experiment": path.stem, "key": "0" * 16, "seconds": 1.5, "executor": "local",
        "checksum": hashlib.sha256(path.read_bytes()).hexdigest(), "versions": {"torch": "2.13.0"},
        "hardware": {"cpu": "a_cpu", "memory_bytes": 2**34, "gpus": []},
    }  # fmt: skip
    path.with_suffix(".json").write_text(json.dumps(facts | more))
