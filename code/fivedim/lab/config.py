"""The project's configuration: experiments and scales, checked before anything runs. No torch here."""

from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from fivedim.errors import UserError

T = TypeVar("T")


class Strict(BaseModel):
    """A configuration object: no unknown keys, no changes after it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Experiment(Strict):
    """One entry of configs/experiments.yaml; the entry's key is also the function's name in articles/<module>.py."""

    module: str
    title: str
    ranks: int = Field(1, ge=1)
    nodes: int = Field(1, ge=1)
    instrument: Literal["meter", "rehearsal", "fabric", "accelerator", "cost-model", "clock", "algebra"]
    rooms: list[str]
    timing: bool = False
    minutes: float = Field(5, gt=0)  # the whole run's limit
    timeout: int = Field(20, ge=1)  # seconds that a collective waits before it fails
    data: list[str] = []  # files read besides the sources, from the root: part of the fingerprint
    params: dict[str, Any] = {}

    @model_validator(mode="after")
    def _links_are_inside_one_machine(self) -> Self:
        if self.instrument == "fabric" and self.nodes > 1:
            raise ValueError("a fabric's links are inside one machine: let nodes be 1")
        return self


class Scale(Strict):
    """One file of configs/scales: what differs from the defaults of experiments.yaml at this scale."""

    description: str
    experiments: dict[str, dict[str, Any]] = {}


def find_root(start: Path | None = None) -> Path:
    """The project's root: the nearest folder, from `start` (default: here) upwards, that holds a Snakefile."""
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if (folder / "Snakefile").is_file() and (folder / "configs").is_dir():
            return folder
    raise UserError(f"no project at {start}: run inside the folder that holds the Snakefile")


def read(path: Path, shape: type[T]) -> T:
    """Read a YAML file into `shape` (a pydantic model or a typing expression). Raises UserError naming file and key."""
    try:
        data = yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # libyaml: ten times as fast
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    try:
        return TypeAdapter(shape).validate_python(data)
    except ValidationError as error:
        raise UserError(f"{path}: {explain(error, data, shape)}") from None


def explain(error: ValidationError, data: Any, shape: Any) -> str:
    """The first fault of a validation in one line: where, what, and (for an unknown key) what is allowed."""
    fault = min(
        error.errors(), key=lambda each: each["type"] != "extra_forbidden"
    )  # a misspelt key is also a missing one
    where = ".".join(name_of(part, data, fault["loc"][:i]) for i, part in enumerate(fault["loc"])) or "the whole file"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if fault["type"] == "extra_forbidden":
        return f"{where}: unknown key; allowed here: {', '.join(allowed(shape, fault['loc'][:-1]))}{more}"
    return f"{where}: {fault['msg'][:1].lower()}{fault['msg'][1:]}, got {fault['input']!r:.80}{more}"


def allowed(shape: Any, path: tuple) -> list[str]:
    """The keys that `shape` allows at `path`: walks models, dicts, lists and unions."""
    if isinstance(shape, type) and issubclass(shape, BaseModel):
        if not path:
            return list(shape.model_fields)
        field = shape.model_fields.get(path[0])
        return allowed(field.annotation, path[1:]) if field else []
    inner = get_args(shape)
    if get_origin(shape) in (dict, list):
        return allowed(inner[-1], path[1:]) if path else []
    return next((keys for choice in inner if (keys := allowed(choice, path))), [])


def name_of(part: str | int, data: Any, path: tuple) -> str:
    """A list entry is named by its `id` or `name` where it has one: `claims.2.2` says more than `claims.4`."""
    for step in path:
        data = data[step] if isinstance(data, dict) and step in data or isinstance(data, list) else None
    entry = data[part] if isinstance(part, int) and isinstance(data, list) else None
    return str(entry.get("id") or entry.get("name") or part) if isinstance(entry, dict) else str(part)


def experiments(root: Path) -> dict[str, Experiment]:
    """Every experiment, by name."""
    return read(root / "configs/experiments.yaml", dict[str, Experiment])


def scale(root: Path, name: str) -> Scale:
    """One scale. Raises UserError for an unknown name (and lists the known ones) or an override of no experiment."""
    known = sorted(path.stem for path in (root / "configs/scales").glob("*.yaml"))
    if name not in known:
        raise UserError(f"scale {name}: unknown; use one of {', '.join(known)}")
    found = read(root / f"configs/scales/{name}.yaml", Scale)
    for experiment in found.experiments.keys() - experiments(root).keys():
        raise UserError(f"configs/scales/{name}.yaml: experiments.{experiment}: no such experiment in experiments.yaml")
    return found
