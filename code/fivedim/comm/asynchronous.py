"""Collectives that are under way while the caller works: in place on a contiguous tensor, carried out by c10d.

All ranks of a group launch theirs in one order. Until `wait` returns, nobody may read or write the tensor.
"""

from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from fivedim.comm.collectives import record_formula
from fivedim.errors import FAILED, UserError


@dataclass(frozen=True)
class Pending:
    """A collective under way."""

    what: str
    group: ProcessGroup
    work: dist.Work

    def wait(self) -> None:
        """Wait for the result. Raises UserError when a rank stays silent for the group's timeout."""
        try:
            self.work.wait()
        except RuntimeError as error:
            where = f"{self.what} on {self.group.group_desc}: position {self.group.rank()} of {self.group.size()}"
            raise UserError(f"{where} got no answer: see what happened on the others ({error})", FAILED) from error


def all_reduce_(x: Tensor, group: ProcessGroup) -> Pending:
    """Sum all x into x itself. Sends 2(N-1)/N * S."""
    work = dist.all_reduce(_contiguous(x), group=group, async_op=True)
    record_formula("all_reduce", group, x, x.numel())
    return Pending("all_reduce", group, work)


def broadcast_(x: Tensor, group: ProcessGroup, src: int = 0) -> Pending:
    """Write position `src`'s x into x itself. Sends S a rank (the last of the chain nothing)."""
    work = dist.broadcast(_contiguous(x), group=group, group_src=src, async_op=True)
    record_formula("broadcast", group, x, x.numel(), src)
    return Pending("broadcast", group, work)


def _contiguous(x: Tensor) -> Tensor:
    """x without history. Raises UserError for a strided one: the backend would work on its raw storage."""
    if not x.is_contiguous():
        raise UserError("an asynchronous collective works in place on a contiguous tensor: copy x first", FAILED)
    return x.detach()
