"""Checkpoints in parts: each rank saves what it owns, any number of ranks reads them back, one process joins them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fivedim.errors import UserError
from fivedim.zero.bucket import Bucket

Part = dict[str, Any]


def part(buckets: list[Bucket], optimizer: Any) -> Part:
    """What this rank owns: for each piece its name, place, master and state; and the options of torch's groups."""
    states = state_of(optimizer)
    pieces = [
        {
            **{"name": piece.name, "shape": tuple(piece.parameter.shape), "start": piece.start, "stop": piece.stop},
            "state": {**states[piece.master], "master": piece.master.detach().clone()},
        }
        for bucket in buckets
        for piece in bucket.pieces
    ]
    options = [
        {key: x for key, x in group.items() if key != "params"} for group in getattr(optimizer, "param_groups", ())
    ]
    return {"pieces": pieces, "options": options}


def state_of(optimizer: Any) -> dict[Tensor, dict[str, Any]]:
    """Each master's state: torch's optimizers have it by master, ours in a list beside the masters."""
    if isinstance(optimizer.state, list):
        return dict(zip(optimizer.parameters, optimizer.state, strict=True))
    return optimizer.state


def load_(buckets: list[Bucket], optimizer: Any, parts: Sequence[Part]) -> None:
    """Copy what this rank now owns out of all saved parts. Raises UserError where elements are missing."""
    saved, states = _by_name(parts), state_of(optimizer)
    for piece in (piece for bucket in buckets for piece in bucket.pieces):
        state = _join(piece.name, tuple(piece.parameter.shape), saved)
        mine = {key: x[piece.start : piece.stop] if _has_elements(x) else x for key, x in state.items()}
        piece.master.copy_(mine.pop("master"))
        states[piece.master].update({key: x.clone() if isinstance(x, Tensor) else x for key, x in mine.items()})
    for group, options in zip(getattr(optimizer, "param_groups", ()), parts[0]["options"], strict=True):
        group.update(options)


def consolidate(parts: Sequence[Part]) -> dict[str, dict[str, Any]]:
    """All ranks' parts as one process would have them, by parameter: `model` (masters) and `optimizer` (state).

    Raises UserError where elements are missing. Sends nothing.
    """
    saved, whole = _by_name(parts), {"model": {}, "optimizer": {}}
    for name, pieces in saved.items():
        shape = pieces[0]["shape"]
        state = {key: x.view(shape) if _has_elements(x) else x for key, x in _join(name, shape, saved).items()}
        whole["model"][name] = state.pop("master")
        whole["optimizer"][name] = state
    return whole


def _by_name(parts: Sequence[Part]) -> dict[str, list[dict]]:
    """The saved pieces of every parameter, in order."""
    if not parts or any("pieces" not in part for part in parts):
        raise UserError("checkpoint: no masters in it: give the parts that all ranks saved, or load the model's own")
    saved: dict[str, list[dict]] = {}
    for piece in sorted((piece for part in parts for piece in part["pieces"]), key=lambda piece: piece["start"]):
        saved.setdefault(piece["name"], []).append(piece)
    return saved


def _join(name: str, shape: tuple[int, ...], saved: dict[str, list[dict]]) -> dict[str, Any]:
    """A parameter's master and state, flat, from its pieces."""
    pieces = saved.get(name, [])
    if any(piece["shape"] != shape for piece in pieces):
        raise UserError(f"checkpoint: {name} is {pieces[0]['shape']} in it, not {shape}: load it into the same model")
    ends = [0, *(piece["stop"] for piece in pieces)]
    if [piece["start"] for piece in pieces] != ends[:-1] or ends[-1] != torch.Size(shape).numel():
        raise UserError(f"checkpoint: {name} is not complete: give every rank's part, once")
    states = [piece["state"] for piece in pieces]
    return {key: torch.cat([state[key] for state in states]) if _has_elements(x) else x for key, x in states[0].items()}


def _has_elements(value: Any) -> bool:
    """Whether a state has an element for each of the parameter's, as moments do and step counters do not."""
    return isinstance(value, Tensor) and value.ndim == 1
