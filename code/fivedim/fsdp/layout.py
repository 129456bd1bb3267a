"""How parameters are cut: which elements of each of a unit's tensors are whose.

A layout maps the tensors' shapes and the number of ranks to `cuts`: `cuts[parameter][rank]` elements, in the order of
both. Pure: it reads no tensor. Sends nothing.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod

from fivedim.ledger.traffic import split

Cuts = list[list[int]]
Layout = Callable[[Sequence[Sequence[int]], int], Cuts]


def rows(shapes: Sequence[Sequence[int]], ranks: int) -> Cuts:
    """Each tensor by itself, along dim 0: whole rows, as torch's FSDP2 has it. A scalar is one row.

    Where there are fewer rows than ranks, the last ranks have none.
    """
    return [[prod(shape[1:]) * part for part in split(shape[0] if shape else 1, ranks)] for shape in shapes]


def flat(shapes: Sequence[Sequence[int]], ranks: int) -> Cuts:
    """All tensors end to end, in equal parts wherever their bounds fall, as torch's FSDP1 has it: rows are cut."""
    stops = list(accumulate(map(prod, shapes)))
    bounds = [0, *accumulate(split(stops[-1], ranks))]
    return [
        [max(0, min(stop, high) - max(stop - prod(shape), low)) for low, high in zip(bounds, bounds[1:], strict=False)]
        for shape, stop in zip(shapes, stops, strict=True)
    ]


def shard_shape(shape: Sequence[int], cuts: Sequence[int], rank: int) -> tuple[int, ...]:
    """The shape of a rank's shard: rows where every rank has whole ones, else flat."""
    width = prod(shape[1:])
    if not shape or not width or any(cut % width for cut in cuts):
        return (cuts[rank],)
    return (cuts[rank] // width, *shape[1:])
