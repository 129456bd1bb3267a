"""Article 5, fully sharded data parallelism: how it cuts parameters, in which order it gathers them, what it sends."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fivedim.lab.config import Strict

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch.distributed import ProcessGroup

    from fivedim.fsdp import FullySharded, Unit


class RowsCutConfig(Strict):
    """`model` on `ranks`: a unit a block, and one for the rest."""

    model: str = "774M"
    ranks: int = 8


def rows_cut(cfg: RowsCutConfig) -> list[dict]:
    """How many rows of matrices lie on two ranks or more, by layout: the bounds of the real shards, on fake tensors.

    A row is a parameter of a unit (those of blocks summed over the blocks), or everything. `cut` counts rows that are
    cut, `bounds` the places where one rank's part of a tensor ends and another's begins, `whole_rows` those between
    two rows. `elements` is what this rank's shards hold. Sends nothing: the group is a fake one.
    """
    from fivedim.fsdp import flat, rows
    from fivedim.lab import rehearsal

    found = []
    with rehearsal.rehearse(cfg.ranks) as group:
        for layout in (rows, flat):
            found += _layout_rows(cfg, layout, group)
    return found


def _layout_rows(cfg: RowsCutConfig, layout, group: ProcessGroup) -> Iterator[dict]:
    from collections import Counter

    from fivedim.fsdp import FullySharded, checkpoint
    from fivedim.model import GPT, named

    model = GPT(named(cfg.model))
    sharded = FullySharded(model, group, model.blocks, layout=layout)
    names, tables = checkpoint.names(sharded), {}
    for unit in sharded.units:
        for index, shard in enumerate(unit.shards):
            name = names[shard].replace(f"{unit.name}.", "blocks.*.") if unit.name else names[shard]
            count = tables.setdefault(name, Counter())
            count.update(tensors=1, rows=unit.shapes[index][0], elements=shard.numel(), **_bounds(unit, index))
    total = sum(tables.values(), Counter())
    for name, count in {**tables, "everything": total}.items():
        each = {key: count[key] for key in ("tensors", "rows", "elements", "bounds", "whole_rows", "cut")}
        yield {"layout": layout.__name__, "parameter": name, "ranks": group.size(), **each}


def _bounds(unit: Unit, index: int) -> dict[str, int]:
    """Of one parameter: the bounds between ranks inside it, and the distinct rows that they fall into."""
    from itertools import accumulate
    from math import prod

    shape = unit.shapes[index]
    width, size = prod(shape[1:]), prod(shape)
    bounds = {bound for bound in accumulate(unit.cuts[index]) if 0 < bound < size}
    cut = {bound // width for bound in bounds if bound % width}
    return {"bounds": len(bounds), "whole_rows": sum(bound % width == 0 for bound in bounds), "cut": len(cut)}


class FsdpTraceConfig(Strict):
    """A GPT whose units' sizes divide by the ranks, and a rank's batch of `sequences` x `length`."""

    vocabulary: int = 512
    context: int = 64
    layers: int = 4
    heads: int = 4
    width: int = 128
    sequences: int = 4
    length: int = 64
    prefetch: int = 1
    seed: int = 0


def fsdp_trace(cfg: FsdpTraceConfig) -> list[dict]:
    """One step as it ran, event by event; what is asserted of it on every rank; and what a step sends.

    `row` is

    - event: of rank 0, in order: launches (gather, reduce), what waited for a launch (forward, backward: parameters are
      whole and the computation begins; reduced) and reshard, with the seconds since the step began;
    - check: whether `name` holds on all ranks;
    - volume: a `collective`'s bytes of one rank, in units of (N-1)/N of all parameters' bytes and over (N-1)/N of their
      number, by `reshard`, and with `mixed` precision: gathered in bf16, reduced in fp32.

    The step that is traced is the second one. Sends what FullySharded does.
    """
    import torch
    import torch.distributed as dist

    from fivedim import comm

    group, rows, order = dist.group.WORLD, [], []
    for reshard, mixed in ((True, False), (False, False), (True, True)):
        sharded, events = _sharded(cfg, group, reshard, mixed)
        for _ in range(2):
            events.clear()
            started = time.perf_counter()
            with comm.count() as traffic:
                _step(cfg, sharded)
        rows += _volume_rows(sharded, traffic, reshard, mixed)
        if reshard and not mixed:
            order = events
            rows += [
                {"row": "event", "order": number, "event": event, "unit": unit, "seconds": at - started}
                for number, (event, unit, at) in enumerate(events)
            ]
    held = checks([(event, unit) for event, unit, _ in order])
    failed = comm.all_reduce_max(torch.tensor([not holds for holds in held.values()], dtype=torch.int64), group)
    return rows + [
        {"row": "check", "name": name, "holds": not bad} for name, bad in zip(held, failed.tolist(), strict=True)
    ]


def _sharded(cfg: FsdpTraceConfig, group: ProcessGroup, reshard: bool, mixed: bool) -> tuple[FullySharded, list]:
    """The model, and the list that its events will be in."""
    import torch

    from fivedim.fsdp import FullySharded, Policy
    from fivedim.model import GPT, GPTConfig

    shape = cfg.model_dump(include={"vocabulary", "context", "layers", "heads", "width"})
    model, events = GPT(GPTConfig(**shape), cfg.seed), []

    def hear(event: str, unit: str, _: Sequence) -> None:
        events.append((event, unit or "rest", time.perf_counter()))

    policy = Policy(torch.bfloat16, torch.float32) if mixed else Policy()
    options = {"policy": policy, "reshard": reshard, "prefetch": cfg.prefetch}
    return FullySharded(model, group, model.blocks, watch=hear, **options), events


def _step(cfg: FsdpTraceConfig, sharded: FullySharded) -> None:
    import torch

    from fivedim.model import cross_entropy

    sharded.zero_grad()
    tokens = torch.zeros(cfg.sequences, cfg.length, dtype=torch.long)
    cross_entropy(sharded(tokens), tokens)[0].backward()


def _volume_rows(sharded: FullySharded, traffic, reshard: bool, mixed: bool) -> Iterator[dict]:
    ranks, elements = sharded.group.size(), sum(sum(unit.sizes) for unit in sharded.units)
    part, case = (ranks - 1) / ranks * elements, {"row": "volume", "reshard": reshard, "mixed": mixed}
    for collective in ("all_gather", "reduce_scatter", "everything"):
        sent = traffic.bytes() if collective == "everything" else traffic.bytes(collective=collective)
        units = sent / part / sharded.units[0].dtype.itemsize
        yield case | {"collective": collective, "bytes": sent, "units": units, "per_parameter": sent / part}


def checks(events: list[tuple[str, str]]) -> dict[str, bool]:
    """What the article says of the order, each by name: true or false of a list of (event, unit)."""

    def at(event: str, unit: str, which: int = 0) -> float:
        found = [number for number, each in enumerate(events) if each == (event, unit)]
        return found[which] if which < len(found) else math.nan  # it is neither before nor after anything

    forward, backward = ([unit for event, unit in events if event == wanted] for wanted in ("forward", "backward"))
    blocks = forward[1:]
    pairs = lambda order: list(zip(order, order[1:], strict=False))  # noqa: E731
    return {
        "in the forward, the next unit's gather is issued before a unit computes": all(
            at("gather", after) < at("forward", unit) for unit, after in pairs(forward)
        ),
        "a block is resharded before the next one computes": all(
            at("forward", unit) < at("reshard", unit) < at("forward", after) for unit, after in pairs(blocks)
        ),
        "the backward takes the units in the opposite order": backward[1:] == blocks[::-1],
        "every unit is gathered again between its reshard and its backward": all(
            at("reshard", unit) < at("gather", unit, 1) < at("backward", unit) for unit in forward
        ),
        "in the backward, the next unit's gather is issued before a unit computes": all(
            at("gather", after, 1) < at("backward", unit) for unit, after in pairs(backward)
        ),
        "every unit's gradients are reduced once, after its backward": all(
            events.count(("reduce", unit)) == 1 and at("backward", unit) < at("reduce", unit) for unit in forward
        ),
        "a block's gradients travel while the next one computes": all(
            at("reduce", unit) < at("backward", after) < at("reduced", unit) for unit, after in pairs(blocks[::-1])
        ),
    }


def flat_cuts_rows(rows: DataFrame) -> float:
    """1 if flat shards cut a row, else 0."""
    return float((rows[rows.layout == "flat"].cut > 0).any())


def units_saved(rows: DataFrame) -> float:
    """What a step sends with reshard, less what it sends without."""
    volumes = rows[(rows.row == "volume") & (rows.collective == "everything")]
    sent = volumes[~volumes.mixed.astype(bool)].set_index("reshard").units
    return float(sent[True] - sent[False])
