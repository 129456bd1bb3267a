"""Fingerprint: a hash of the files that a result depends on, read without importing them. No torch here."""

import hashlib
import importlib.util
from pathlib import Path

import fivedim
from fivedim.errors import UserError
from fivedim.lab.config import Experiment

PACKAGE = Path(fivedim.__file__).parent


def fingerprint(root: Path, module: str, entry: Experiment) -> str:
    """sha256 (hex) over the article's module, the declared rooms and data, the instrument's file, the lock."""
    files = [article_file(module), *(file for room in entry.rooms for file in room_files(room))]
    files += [PACKAGE / "lab" / f"{entry.instrument.replace('-', '_')}.py", root / "requirements.lock"]
    files += [data_file(root, name) for name in entry.data]
    digest = hashlib.sha256()
    for file in sorted({file for file in files if file.is_file()}):
        base = PACKAGE if file.is_relative_to(PACKAGE) else root
        name = file.relative_to(base).as_posix() if file.is_relative_to(base) else file.name
        digest.update(f"{name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def article_file(module: str) -> Path:
    """The source file of an article's module, by its full name. Raises UserError where there is none."""
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None or not found.origin:
        raise UserError(
            f"configs/experiments.yaml: module {module}: no such module; write code/fivedim/articles/<module>.py"
        )
    return Path(found.origin)


def room_files(room: str) -> list[Path]:
    """The sources of a room (`mesh`, `comm`, `lab/meter` ...): one file, or every file of its folder."""
    path = PACKAGE / room
    if path.is_dir():
        return sorted(path.rglob("*.py"))
    if path.with_suffix(".py").is_file():
        return [path.with_suffix(".py")]
    raise UserError(f"configs/experiments.yaml: rooms: {room}: no such room in code/fivedim")


def data_file(root: Path, name: str) -> Path:
    """A file that an experiment reads besides its sources, relative to the project's root."""
    if not (root / name).is_file():
        raise UserError(f"configs/experiments.yaml: data: {name}: no such file")
    return root / name
