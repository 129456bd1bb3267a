"""Spec: what one run computes, resolved from experiments.yaml and a scale, and the run's key. No torch here."""

import hashlib
import importlib
import inspect
import json
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ValidationError

from fivedim.errors import UserError
from fivedim.lab import config
from fivedim.lab.config import Strict
from fivedim.lab.fingerprint import fingerprint


class Spec(Strict):
    """A resolved run. `params` is the article's validated config; `minutes` and `timeout` (s) are not in the key."""

    experiment: str
    module: str
    instrument: str
    ranks: int
    nodes: int
    timing: bool
    params: dict[str, Any]
    fingerprint: str
    minutes: float
    timeout: int

    @property
    def key(self) -> str:
        """The first 16 hex digits of sha256 over everything that the result depends on."""
        text = json.dumps(self.model_dump(exclude={"minutes", "timeout"}), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def run(self) -> str:
        """The run folder's name."""
        return f"{self.experiment}-{self.key}"


def names(root: Path) -> list[str]:
    """Every experiment's name, in the order of experiments.yaml."""
    return list(config.experiments(root))


def resolve(root: Path, name: str, scale: str) -> Spec:
    """The spec of experiment `name` at `scale`. Raises UserError naming file, key and what is allowed."""
    return resolved(root, name, scale, config.experiments(root), config.scale(root, scale))


def resolve_all(root: Path, scale: str) -> dict[str, Spec]:
    """Every experiment's spec, in the order of experiments.yaml; the files are read once."""
    known, at_scale = config.experiments(root), config.scale(root, scale)
    return {name: resolved(root, name, scale, known, at_scale) for name in known}


def resolved(root: Path, name: str, scale: str, known: dict[str, config.Experiment], at_scale: config.Scale) -> Spec:
    if name not in known:
        raise UserError(
            f"experiment {name}: unknown; use one of {', '.join(known) or 'none: experiments.yaml is empty'}"
        )
    override = at_scale.experiments.get(name, {})
    taken = {key: override[key] for key in ("ranks", "nodes", "minutes") if key in override}
    where = f"configs/scales/{scale}.yaml: experiments.{name}"
    entry = validated(config.Experiment, known[name].model_dump() | taken, where)
    if entry.ranks % entry.nodes:
        raise UserError(f"{where}: {entry.ranks} ranks on {entry.nodes} nodes: let nodes divide ranks")
    module = full_name(entry.module)
    sources = fingerprint(root, module, entry)
    params = entry.params | {key: value for key, value in override.items() if key not in taken}
    cfg = validated(
        config_class(module, name), params, where if override else f"configs/experiments.yaml: {name}.params"
    )
    same = {key: getattr(entry, key) for key in ("instrument", "ranks", "nodes", "timing", "minutes", "timeout")}
    return Spec(experiment=name, module=module, params=cfg.model_dump(mode="json"), fingerprint=sources, **same)


def validated(shape: type[BaseModel], data: dict[str, Any], where: str) -> BaseModel:
    """`data` as a `shape`. Raises UserError in one line that begins with `where`."""
    try:
        return shape(**data)
    except ValidationError as error:
        raise UserError(f"{where}.{config.explain(error, data, shape)}") from None


def full_name(module: str) -> str:
    """`a02_allreduce` is a module of fivedim.articles; a dotted name is taken as it is (experiments kept elsewhere)."""
    return module if "." in module else f"fivedim.articles.{module}"


def article(module: str) -> ModuleType:
    """Import an article's module by its full name; its top imports nothing heavy."""
    return importlib.import_module(module)


def config_class(module: str, name: str) -> type[BaseModel]:
    """The pydantic model that experiment `name` takes: the annotation of its function's one argument."""
    function = getattr(article(module), name, None)
    if not inspect.isfunction(function):
        raise UserError(f"configs/experiments.yaml: {name}: module {module} has no function {name}")
    shapes = [given.annotation for given in inspect.signature(function, eval_str=True).parameters.values()]
    if len(shapes) != 1 or not (inspect.isclass(shapes[0]) and issubclass(shapes[0], BaseModel)):
        raise UserError(f"{module}.{name}: it must take one argument, annotated with a pydantic model")
    return shapes[0]
