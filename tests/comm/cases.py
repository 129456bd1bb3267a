"""Inputs and oracles of the collectives' tests; every rank can make every other rank's data."""

from itertools import product

import torch
import torch.distributed as dist

from fivedim.ledger.traffic import split

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64)
# The first dim is the rows: 24 divides by every number of ranks here, 7 by none, 2 is fewer than most, 0 is none.
SHAPES = ((0,), (1,), (2,), (5, 0), (5, 3))
LAYOUTS = {
    "dense": lambda base: base,
    "column": lambda base: torch.stack([base, base + 1], -1)[..., 1],
    "slice": lambda base: torch.cat([base[:1], base])[1:],
    "transposed": lambda base: base.movedim(0, -1).contiguous().movedim(-1, 0),
    "expanded": lambda base: base[:1].expand(base.shape),
}


def whole_numbers(rank, shape, dtype, layout="dense"):
    """Small integers, different on every rank and in every element, whose sums are exact in every dtype here."""
    generator = torch.Generator().manual_seed(1000 + rank)
    return LAYOUTS[layout](torch.randint(-9, 10, shape, generator=generator).to(dtype))


def every_case():
    """(dtype, shape, layout): every dtype, every shape, every layout."""
    yield from product(DTYPES, ((7,), (24, 2)), ["dense"])
    yield from product([torch.float32], SHAPES, ["dense"])
    yield from product([torch.float32], [(24, 2)], [name for name in LAYOUTS if name != "dense"])


def part(x, rank, ranks):
    """A rank's rows: what `split` gives it."""
    return x.tensor_split(ranks)[rank]


def serial(collective, inputs, rank, root):
    """What `rank` must get, from all ranks' inputs, in one process; None where it gets nothing."""
    ranks = len(inputs)

    def total():
        return sum(x.double() if x.is_floating_point() else x for x in inputs).to(inputs[0].dtype)

    return {
        "broadcast": lambda: inputs[root],
        "reduce": lambda: total() if rank == root else None,
        "all_reduce": total,
        "scatter": lambda: part(inputs[root], rank, ranks),
        "reduce_scatter": lambda: part(total(), rank, ranks),
        "gather": lambda: torch.cat(inputs) if rank == root else None,
        "all_gather": lambda: torch.cat(inputs),
        "all_to_all": lambda: torch.cat([part(x, rank, ranks) for x in inputs]),
    }[collective]()


def c10d(collective, x, group, root, rows):
    """What torch.distributed gives for a contiguous copy of x; where it wants equal parts, by a detour."""
    rank, ranks, x = group.rank(), group.size(), x.clone(memory_format=torch.contiguous_format)
    if collective in ("broadcast", "scatter"):
        dist.broadcast(x, group=group, group_src=root)
        return x if collective == "broadcast" else part(x, rank, ranks)
    if collective == "reduce":
        dist.reduce(x, group=group, group_dst=root)
        return x if rank == root else None
    if collective in ("all_reduce", "reduce_scatter"):
        dist.all_reduce(x, group=group)
        return x if collective == "all_reduce" else part(x, rank, ranks)
    if collective == "all_to_all":
        parts = split(rows, ranks)
        out = x.new_empty(parts[rank] * ranks, *x.shape[1:])
        dist.all_to_all_single(out, x, [parts[rank]] * ranks, parts, group=group)
        return out
    parts = split(rows, ranks)
    padded = x.new_zeros(parts[0], *x.shape[1:])
    padded[: x.shape[0]] = x
    gathered = [torch.empty_like(padded) for _ in range(ranks)]
    dist.all_gather(gathered, padded, group=group)
    joined = torch.cat([piece[:size] for piece, size in zip(gathered, parts, strict=True)])
    return joined if collective == "all_gather" or rank == root else None


def same(found, wanted):
    """Equal in shape, dtype and values, NaN where there is NaN."""
    if found is None or wanted is None:
        return found is wanted
    alike = found.shape == wanted.shape and found.dtype == wanted.dtype
    return alike and torch.allclose(found, wanted, rtol=0, atol=0, equal_nan=True)
