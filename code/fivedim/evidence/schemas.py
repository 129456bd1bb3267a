"""configs/schemas/*.schema.json, for editors: `python -m fivedim.evidence.schemas` writes them from the models."""

import json
from pathlib import Path

from pydantic import TypeAdapter

from fivedim.evidence.claims import Claim
from fivedim.lab import config, files

SHAPES = {"claims": list[Claim], "experiments": dict[str, config.Experiment], "scale": config.Scale}


def documents() -> dict[str, str]:
    """Every schema's text, by file name."""
    return {
        f"{name}.schema.json": json.dumps(TypeAdapter(shape).json_schema(), indent=1, sort_keys=True) + "\n"
        for name, shape in SHAPES.items()
    }


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in documents().items():
        files.write(folder / name, text)


if __name__ == "__main__":
    write(config.find_root() / "configs/schemas")
