"""Collectives that are under way while the caller works: in place on contiguous tensors.

All ranks of a group launch theirs in one order. Until `wait` returns, nobody may read or write the tensors.

All-reduce and broadcast are carried out by c10d. All-gather and reduce-scatter are sent from here, each piece straight
to whom it is for: the volume is the ring's, in one step in place of N-1, and pieces may have any sizes, also none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from fivedim.comm import counter
from fivedim.comm.collectives import Flight, launch, record_formula
from fivedim.errors import FAILED, UserError


@dataclass(frozen=True)
class Pending:
    """A collective under way: what travels, and what is done with it once it is here."""

    flight: Flight
    finish: Callable[[], object] = lambda: None

    def wait(self) -> None:
        """Wait for the result. Raises UserError when a rank stays silent for the group's timeout."""
        self.flight.arrive()
        self.flight.depart()
        self.finish()


def all_reduce_(x: Tensor, group: ProcessGroup) -> Pending:
    """Sum all x into x itself. Sends 2(N-1)/N * S."""
    work = dist.all_reduce(_contiguous(x), group=group, async_op=True)
    record_formula("all_reduce", group, x, x.numel())
    return _carried_out("all_reduce", group, work)


def broadcast_(x: Tensor, group: ProcessGroup, src: int = 0) -> Pending:
    """Write position `src`'s x into x itself. Sends S a rank (the last of the chain nothing)."""
    work = dist.broadcast(_contiguous(x), group=group, group_src=src, async_op=True)
    record_formula("broadcast", group, x, x.numel(), src)
    return _carried_out("broadcast", group, work)


def all_gather_(x: Tensor, sizes: Sequence[int], group: ProcessGroup) -> Pending:
    """Fill x, flat, with every rank's piece of it; a rank's own, of `sizes[rank]` elements, is in place beforehand.

    Sends (N-1) times this rank's piece: (N-1)/N * S where all are equal, and on average.
    """
    pieces, rank = _contiguous(x).split(list(sizes)), group.rank()
    others = [(peer, piece) for peer, piece in enumerate(pieces) if peer != rank]
    sends = [(peer, pieces[rank]) for peer, _ in others] if sizes[rank] else []
    return Pending(_launch(sends, _filled(others), x, group, "all_gather"))


def reduce_scatter_(out: Tensor, x: Tensor, sizes: Sequence[int], group: ProcessGroup) -> Pending:
    """Write the sum of this rank's piece over all x, flat, into `out`, which may be that piece of x itself.

    Piece i has `sizes[i]` elements. They are added in rank order, in float32 at least, and rounded once, to out's
    dtype. Needs room for N-1 pieces. Sends all but this rank's piece: (N-1)/N * S where all are equal, and on average.
    """
    pieces, rank = _contiguous(x).split(list(sizes)), group.rank()
    others = [(peer, piece) for peer, piece in enumerate(pieces) if peer != rank]
    landing = {peer: torch.empty_like(pieces[rank]) for peer, _ in others} if sizes[rank] else {}
    flight = _launch(_filled(others), list(landing.items()), x, group, "reduce_scatter")
    terms = [landing.get(peer, pieces[rank]) for peer in range(group.size())]
    return Pending(flight, lambda: _add(out, terms))


def _launch(sends: list, receives: list, x: Tensor, group: ProcessGroup, collective: str) -> Flight:
    counter.record(collective, "direct", group, x, "handed", 1, 0)
    return launch(sends, receives, group, 0, collective, "direct")


def _filled(messages: list[tuple[int, Tensor]]) -> list[tuple[int, Tensor]]:
    """Without the empty ones, which gloo refuses."""
    return [(peer, piece) for peer, piece in messages if piece.numel()]


def _add(out: Tensor, terms: list[Tensor]) -> None:
    """The terms' sum, in order, in float32 at least."""
    first, *more = terms
    total = first.to(torch.promote_types(first.dtype, torch.float32), copy=True)
    for term in more:
        total.add_(term)
    out.detach().copy_(total)


def _carried_out(what: str, group: ProcessGroup, work: dist.Work) -> Pending:
    return Pending(Flight(what, group, [("the others", work)], []))


def _contiguous(x: Tensor) -> Tensor:
    """x without history. Raises UserError for a strided one: the backend would work on its raw storage."""
    if not x.is_contiguous():
        raise UserError("an asynchronous collective works in place on a contiguous tensor: copy x first", FAILED)
    return x.detach()
