"""Plain collectives on a group: the only file that names torch.distributed's.

Every function returns a new tensor without autograd history and leaves its argument alone, strided, expanded or empty
as it may be (known ways to go wrong: gloo works on raw storage, and reduces on non-root ranks into the caller's
buffer). `src` and `dst` are positions in the group. Where rows are dealt out, N divides dim 0; the from-scratch
algorithms take any size. Volumes: ledger/traffic.py, OPTIMAL.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from fivedim.comm import counter
from fivedim.comm.latency import pay
from fivedim.errors import FAILED, UserError
from fivedim.ledger import traffic

Messages = Sequence[tuple[int, Tensor]]  # position in the group, contiguous tensor


def broadcast(x: Tensor, group: ProcessGroup, src: int = 0) -> Tensor:
    """`src`'s x on every rank; elsewhere only x's shape and dtype count.

    Sends S a rank (the last of the chain nothing).
    """
    out = _copy(x)
    dist.broadcast(out, group=group, group_src=src)
    record_formula("broadcast", group, x, x.numel(), src)
    return out


def broadcast_(x: Tensor, group: ProcessGroup, src: int = 0) -> Tensor:
    """Broadcast into x itself, strided or not. Sends as broadcast does."""
    return x.detach().copy_(broadcast(x, group, src))


def scatter(x: Tensor, group: ProcessGroup, src: int = 0) -> Tensor:
    """`src`'s x [N*rows, ...] dealt out: [rows, ...]; elsewhere only x's shape and dtype count.

    `src` sends (N-1)/N * S.
    """
    rows = _rows(x, group)
    out = x.new_empty(rows, *x.shape[1:])
    pieces = list(_parts(x.detach().contiguous(), group.size())) if group.rank() == src else None
    dist.scatter(out, pieces, group=group, group_src=src)
    record_formula("scatter", group, x, x.numel(), src)
    return out


def gather(x: Tensor, group: ProcessGroup, dst: int = 0) -> Tensor | None:
    """Every rank's x [rows, ...] on `dst`: [N*rows, ...]; None elsewhere. Each rank but `dst` sends S/N."""
    _rows(x, group, dealt=False)
    out = x.new_empty(group.size() * x.shape[0], *x.shape[1:]) if group.rank() == dst else None
    pieces = None if out is None else list(_parts(out, group.size()))
    dist.gather(x.detach().contiguous(), pieces, group=group, group_dst=dst)
    record_formula("gather", group, x, x.numel() * group.size(), dst)
    return out


def reduce(x: Tensor, group: ProcessGroup, dst: int = 0) -> Tensor | None:
    """The sum of all x on `dst`, None elsewhere. Each rank but `dst` sends S."""
    out = _copy(x)
    dist.reduce(out, group=group, group_dst=dst)
    record_formula("reduce", group, x, x.numel(), dst)
    return out if group.rank() == dst else None


def all_gather(x: Tensor, group: ProcessGroup) -> Tensor:
    """Every rank's x [rows, ...] on every rank: [N*rows, ...]. Sends (N-1)/N * S, S the result's size."""
    _rows(x, group, dealt=False)
    out = x.new_empty(group.size() * x.shape[0], *x.shape[1:])
    dist.all_gather_single(out, x.detach().contiguous(), group=group)
    record_formula("all_gather", group, x, out.numel())
    return out


def reduce_scatter(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of all x [N*rows, ...], dealt out: [rows, ...]. Sends (N-1)/N * S."""
    out = x.new_empty(_rows(x, group), *x.shape[1:])
    dist.reduce_scatter_single(out, x.detach().contiguous(), group=group)
    record_formula("reduce_scatter", group, x, x.numel())
    return out


def all_reduce(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of all x on every rank. Sends 2(N-1)/N * S."""
    out = _copy(x)
    dist.all_reduce(out, group=group)
    record_formula("all_reduce", group, x, x.numel())
    return out


def all_reduce_(x: Tensor, group: ProcessGroup) -> Tensor:
    """All-reduce into x itself, strided or not. Sends as all_reduce does."""
    return x.detach().copy_(all_reduce(x, group))


def all_reduce_max(x: Tensor, group: ProcessGroup) -> Tensor:
    """The element-wise maximum of all x on every rank, NaN where any rank has one.

    Gloo's MAX keeps a NaN only if it is rank 0's, so each float travels with a flag that says `NaN here`.
    Sends 2(N-1)/N * S, of floats twice as much.
    """
    if not x.is_floating_point():
        return _all_reduce_max(x, group)
    missing = x.isnan()
    value, flag = _all_reduce_max(torch.stack([x.masked_fill(missing, -math.inf), missing.to(x.dtype)]), group)
    return value.masked_fill(flag > 0, math.nan)


def all_to_all(x: Tensor, group: ProcessGroup) -> Tensor:
    """Rows [N*rows, ...] exchanged: position i's part j becomes position j's part i. Sends (N-1)/N * S."""
    _rows(x, group)
    out = x.new_empty(x.shape)
    dist.all_to_all_single(out, x.detach().contiguous(), group=group)
    record_formula("all_to_all", group, x, x.numel())
    return out


def barrier(group: ProcessGroup) -> None:
    """Wait until every rank of the group is here. Not counted."""
    dist.barrier(group=group)


def exchange(
    sends: Messages,
    receives: Messages,
    group: ProcessGroup,
    tag: int = 0,
    collective: str = "exchange",
    algorithm: str = "direct",
) -> None:
    """Send to and receive from positions of the group, all at once, and wait for all of it. Otherwise as `launch`."""
    flight = launch(sends, receives, group, tag, collective, algorithm)
    flight.arrive()
    flight.depart()


def launch(
    sends: Messages, receives: Messages, group: ProcessGroup, tag: int, collective: str, algorithm: str
) -> "Flight":
    """Start to send to and receive from positions of the group, all at once. Tensors are contiguous.

    Receives are posted first, so that what arrives has a place to go, and messages that cross cannot block each other.
    Messages between two ranks with one tag arrive in the order they were sent. Sends the tensors in `sends`; their
    bytes are counted as `handed`.
    """
    for _, x in sends:
        counter.record(collective, algorithm, group, x, "handed", 0, x.nbytes)
    if sends:
        pay()
    on_gpu = any(x.is_cuda for _, x in (*sends, *receives))
    arrivals, departures = (_grouped if on_gpu else _posted)(sends, receives, group, tag)
    return Flight(f"{algorithm} {collective}", group, arrivals, departures)


Works = list[tuple[object, dist.Work]]  # whom it waits for


@dataclass(frozen=True)
class Flight:
    """Messages under way. Waiting raises UserError when a partner stays silent for the group's timeout."""

    what: str
    group: ProcessGroup
    arrivals: Works
    departures: Works

    def arrive(self) -> None:
        """Wait for what is received."""
        self._wait(self.arrivals)

    def depart(self) -> None:
        """Wait until what is sent may be written again."""
        self._wait(self.departures)

    def _wait(self, works: Works) -> None:
        try:
            while works:
                works[-1][1].wait()
                works.pop()
        except RuntimeError as error:
            raise UserError(
                f"{self.what} on {self.group.group_desc}: position {self.group.rank()} of {self.group.size()} got no "
                f"answer from {works[-1][0]}: see what happened there ({error})",
                FAILED,
            ) from error


def _posted(sends: Messages, receives: Messages, group: ProcessGroup, tag: int) -> tuple[Works, Works]:
    """One after the other, none waiting: what isend and irecv call, without their checks, which cost as much again."""
    arrivals = [(peer, group.recv([x], peer, tag)) for peer, x in receives]
    return arrivals, [(peer, group.send([x], peer, tag)) for peer, x in sends]


def _grouped(sends: Messages, receives: Messages, group: ProcessGroup, tag: int) -> tuple[Works, Works]:
    """In one launch, as NCCL must have it: a receive that is launched alone would block the send behind it."""
    operations = [dist.P2POp(dist.irecv, x, group=group, group_peer=peer, tag=tag) for peer, x in receives]
    operations += [dist.P2POp(dist.isend, x, group=group, group_peer=peer, tag=tag) for peer, x in sends]
    partners = sorted({peer for peer, _ in (*sends, *receives)})
    works = [(partners, work) for work in dist.batch_isend_irecv(operations)]
    return works, works


def _all_reduce_max(x: Tensor, group: ProcessGroup) -> Tensor:
    out = _copy(x)
    dist.all_reduce(out, op=dist.ReduceOp.MAX, group=group)
    record_formula("all_reduce", group, x, x.numel())
    return out


def _copy(x: Tensor) -> Tensor:
    """A contiguous copy without history: what the backend may write into."""
    return x.detach().clone(memory_format=torch.contiguous_format)


def _parts(x: Tensor, ranks: int) -> tuple[Tensor, ...]:
    """Views of a contiguous x's N equal parts along dim 0; also right for no rows at all."""
    return x.view(ranks, x.shape[0] // ranks, *x.shape[1:]).unbind(0)


def _rows(x: Tensor, group: ProcessGroup, dealt: bool = True) -> int:
    """Rows of one part. Raises UserError for a scalar, and where rows are dealt out that N does not divide."""
    if x.ndim == 0:
        raise UserError("a scalar has no rows to scatter or gather: reshape it to [1]", FAILED)
    if dealt and x.shape[0] % group.size():
        raise UserError(f"{x.shape[0]} rows do not divide by {group.size()} ranks: pad them, or use comm.ring", FAILED)
    return x.shape[0] // group.size()


def record_formula(collective: str, group: ProcessGroup, x: Tensor, size: int, *root: int) -> None:
    """Count one call that c10d carried out, its bytes by the formula of the bandwidth-optimal algorithm."""
    sent = traffic.OPTIMAL[collective](group.rank(), group.size(), size, *root)
    counter.record(collective, "c10d", group, x, "formula", 1, sent * x.element_size())
