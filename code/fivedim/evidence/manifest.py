"""results/<scale>/manifest.json: the hash of every built file, so that an edited one is named."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from fivedim.errors import FAILED, UserError
from fivedim.evidence import results
from fivedim.lab import files


def path(root: Path, scale: str) -> Path:
    return results.folder(root, scale) / "manifest.json"


def write(root: Path, scale: str, built: Iterable[Path]) -> None:
    """Record the files' hashes, by their path from the root."""
    names = sorted(Path(file).resolve().relative_to(root).as_posix() for file in built)
    record = {"scale": scale, "files": {name: digest(root / name) for name in names}}
    files.write_json(path(root, scale), record)


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def differences(root: Path, scale: str) -> list[str]:
    """One line for each file that is gone or is not as it was built."""
    try:
        recorded = json.loads(path(root, scale).read_text())["files"]
    except FileNotFoundError:
        raise UserError(f"{path(root, scale)}: no manifest: run `snakemake --config scale={scale}`", FAILED) from None
    found = {name: digest(root / name) if (root / name).is_file() else None for name in recorded}
    return [
        f"{name}: {'is gone' if found[name] is None else 'was changed after it was built'}: delete it and run snakemake"
        for name in recorded
        if found[name] != recorded[name]
    ]
