"""Checkpoints: a plain state dict from shards, and shards from a plain state dict, on any number of ranks.

Every function is collective: all ranks of the group call it, and all get, or give, the same whole tensors.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fivedim.errors import FAILED, UserError
from fivedim.fsdp.sharded import FullySharded

State = dict[str, Any]


def state_dict(model: FullySharded) -> dict[str, Tensor]:
    """What `model.module.state_dict()` would be on one rank, tied names too.

    Sends (N-1)/N * S of all parameters, in their own dtype.
    """
    whole = gather(model, {shard: shard for unit in model.units for shard in unit.shards})
    kept = model.module.state_dict(keep_vars=True)
    return {name: whole[x] if x in whole else x.detach().clone() for name, x in kept.items()}


@torch.no_grad()
def load_state_dict(model: FullySharded, saved: dict[str, Tensor]) -> None:
    """Copy whole parameters and buffers in. Sends nothing. Raises UserError where names or shapes differ."""
    kept = model.module.state_dict(keep_vars=True)
    shapes = {shard: shape for unit in model.units for shard, shape in zip(unit.shards, unit.shapes, strict=True)}
    if odd := sorted(kept.keys() ^ saved.keys()):
        raise UserError(f"checkpoint: {odd[0]} is not both in it and in the model: load one of the same model", FAILED)
    for name, x in kept.items():
        if saved[name].shape != (shape := shapes.get(x, x.shape)):
            raise UserError(f"checkpoint: {name} is {list(saved[name].shape)}, the model has {list(shape)}", FAILED)
    by_shard = {x: saved[name] for name, x in kept.items()}
    for unit in model.units:
        for index, shard in enumerate(unit.shards):
            shard.copy_(unit.cut(index, by_shard.pop(shard)))
    for buffer, value in by_shard.items():
        buffer.copy_(value)


def optimizer_state_dict(model: FullySharded, optimizer: Optimizer) -> State:
    """An optimizer's state by the parameters' names, and its groups with names in place of numbers.

    Tensors like shards, named in `cut`, become whole; scalar ones (step counters) are the same on all ranks. Raises
    UserError for anything else, which no elementwise optimizer has. Sends (N-1)/N * S of each state.
    """
    name_of, cut = names(model), set()
    state = {name: {} for name in name_of.values()}
    for key in sorted({key for found in optimizer.state.values() for key in found}):
        held = {shard: found[key] for shard, found in optimizer.state.items() if key in found}
        if any(x.ndim for x in held.values()):
            if odd := [name_of[shard] for shard, x in held.items() if x.shape != shard.shape]:
                what = f"{odd[0]}: its optimizer's {key} is not of its shape"
                raise UserError(f"{what}: use an elementwise optimizer", FAILED)
            held = gather(model, held)
            cut.add(key)
        for shard, x in held.items():
            state[name_of[shard]][key] = x.clone()
    groups = [group | {"params": [name_of[shard] for shard in group["params"]]} for group in optimizer.param_groups]
    return {"state": state, "cut": cut, "param_groups": groups}


def load_optimizer_state_dict(model: FullySharded, optimizer: Optimizer, saved: State) -> None:
    """Give an optimizer over the same parameters a saved state, cut for this rank. Sends nothing.

    Raises UserError where its groups have other parameters.
    """
    shard_of = {name: shard for shard, name in names(model).items()}
    given = [[names(model)[shard] for shard in group["params"]] for group in optimizer.param_groups]
    if given != [group["params"] for group in saved["param_groups"]]:
        raise UserError("optimizer state: it was saved with other parameter groups: make the same ones", FAILED)
    where = {shard: (unit, index) for unit in model.units for index, shard in enumerate(unit.shards)}
    number = {name: index for index, name in enumerate(name for group in given for name in group)}
    state = {}
    for name, index in number.items():
        unit, position = where[shard_of[name]]
        state[index] = {
            key: (unit.cut(position, x) if key in saved["cut"] else x).clone()
            for key, x in saved["state"][name].items()
        }
    groups = [group | {"params": [number[name] for name in group["params"]]} for group in saved["param_groups"]]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def gather(model: FullySharded, held: dict[nn.Parameter, Tensor]) -> dict[nn.Parameter, Tensor]:
    """Whole tensors from ones like shards, by shard; units of which nothing is held send nothing."""
    found = {}
    for unit in model.units:
        mine = [held.get(shard) for shard in unit.shards]
        if present := [x for x in mine if x is not None]:
            parts = [torch.zeros_like(shard) if x is None else x for shard, x in zip(unit.shards, mine, strict=True)]
            whole = unit.unpack(unit.gather(parts, present[0].dtype).wait())
            found |= {shard: x.clone() for shard, x in zip(unit.shards, whole, strict=True) if shard in held}
    return found


def names(model: FullySharded) -> dict[nn.Parameter, str]:
    """Each shard's name in the module, the first one if it is tied."""
    return {shard: name for name, shard in model.module.named_parameters()}
