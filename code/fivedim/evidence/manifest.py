"""results/<scale>/manifest.json: the hash of every built file, so that an edited one is named."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from fivedim.errors import FAILED, UserError
from fivedim.evidence import results, tables


def path(root: Path, scale: str) -> Path:
    return results.folder(root, scale) / "manifest.json"


def write(root: Path, scale: str, files: Iterable[Path]) -> None:
    """Record the files' hashes, by their path from the root."""
    names = sorted(Path(file).resolve().relative_to(root).as_posix() for file in files)
    record = {"scale": scale, "files": {name: digest(root / name) for name in names}}
    tables.write(path(root, scale), json.dumps(record, indent=1) + "\n")


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
