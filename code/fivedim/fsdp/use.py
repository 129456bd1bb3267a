"""A use of a unit in a forward, and what its backward needs to have the parameters once more."""

import weakref
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from fivedim import comm
from fivedim.fsdp.unit import Gathering, Unit
from fivedim.ledger.traffic import split


class Use:
    """One use of a unit, kept alive by the graph alone. `forward` are the uses of the same forward, in order."""

    def __init__(self, unit: Unit, forward: list[weakref.ref["Use"]], synchronizes: bool):
        self.unit, self.forward, self.synchronizes = unit, forward, synchronizes
        self.needed = False  # autograd has saved a parameter
        self.within: ProcessGroup | None = None
        self.kept: Tensor | None = None
        self.parameters: list[Tensor] | None = None  # whole again, in the backward
        forward.append(weakref.ref(self))

    def keep(self, whole: Tensor, within: ProcessGroup) -> None:
        """Keep this rank's part of the gathered parameters for the backward, spread over a smaller group."""
        self.within, self.kept = within, whole.split(self._runs(within))[within.rank()].clone()

    def gather(self, dtype: torch.dtype) -> Gathering:
        """Launch: the parameters once more, from all shards, or from what the M ranks of the smaller group keep.

        Sends (N-1)/N * S in `dtype`, or (M-1)/M * S.
        """
        if self.within is None:
            return self.unit.gather(self.unit.shards, dtype)
        runs = self._runs(self.within)
        whole = self.kept.new_empty(sum(runs))
        whole.split(runs)[self.within.rank()].copy_(self.kept)
        return Gathering(whole, comm.asynchronous.all_gather_(whole, runs, self.within))

    def following(self) -> Iterator["Use"]:
        """The uses whose backward comes after this one's, the next first, where it needs parameters."""
        others = (ref() for ref in reversed(self.forward))
        return (use for use in others if use not in (None, self) and use.needed and use.parameters is None)

    def end(self) -> None:
        """The backward is over."""
        self.needed, self.kept, self.parameters = False, None, None

    def _runs(self, within: ProcessGroup) -> list[int]:
        """The elements that each member of a smaller group keeps: consecutive ranks' pieces, spread evenly."""
        pieces = iter(self.unit.sizes)
        return [sum(next(pieces) for _ in range(count)) for count in split(self.unit.group.size(), within.size())]


class Saved(NamedTuple):
    """What autograd saves in place of a use's parameter, or of a view of it."""

    use: Use
    index: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
