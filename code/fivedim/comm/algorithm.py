"""What each collective means: which blocks a rank has, which it wants, and how tensors are cut into them.

Decorating a schedule makes it an Algorithm: `ring.all_reduce(x, group)` runs it, `ring.all_reduce.schedule(rank,
ranks)` is the data, and `ring.all_reduce.has/wants` say what it must achieve. `out`, contiguous, is written where it is
given; all-reduce and broadcast take x itself. Arguments and results are those of comm's plain collectives, but
for any number of rows: part i of `rows` over N ranks has `rows // N` of them, the first `rows % N` parts one more.
"""

from collections.abc import Callable
from functools import lru_cache, update_wrapper
from math import prod

from torch import Tensor
from torch.distributed import ProcessGroup

from fivedim.comm import counter
from fivedim.comm.executor import Program, compile, execute
from fivedim.comm.schedule import Step
from fivedim.errors import FAILED, UserError
from fivedim.ledger.traffic import split

ALGORITHMS: list["Algorithm"] = []


def per_rank(ranks: int) -> int:
    """One block a rank."""
    return ranks


def whole(ranks: int) -> int:
    """One block: the tensor is not cut."""
    return 1


class Algorithm:
    """A schedule with a meaning.

    `collective` and `name` are what the counter tells apart; `blocks(ranks)` is how many a tensor is cut into.
    """

    collective: str
    rooted = False

    def __init__(self, schedule: Callable[..., list[Step]], blocks: Callable[[int], int] = per_rank):
        update_wrapper(self, schedule)
        self.schedule, self.blocks = schedule, blocks
        self.name = schedule.__module__.rpartition(".")[2]
        ALGORITHMS.append(self)

    @classmethod
    def of(cls, blocks: Callable[[int], int]) -> Callable[[Callable[..., list[Step]]], "Algorithm"]:
        """Decorator for a schedule whose tensor is cut otherwise than into one block a rank."""
        return lambda schedule: cls(schedule, blocks)

    def has(self, rank: int, ranks: int, root: int = 0) -> range:
        """The blocks that a rank starts with: all of them, unless a subclass says otherwise."""
        return range(self.blocks(ranks))

    def wants(self, rank: int, ranks: int, root: int = 0) -> range:
        """The blocks that a rank must end with: all of them, unless a subclass says otherwise."""
        return range(self.blocks(ranks))

    def _run(self, x: Tensor, group: ProcessGroup, sizes: list[int], root: int, out: Tensor | None) -> Tensor:
        """Execute this rank's part; returns the wanted blocks, flat."""
        rank, ranks = group.rank(), group.size()
        wanted = self.wants(rank, ranks, root)
        has, elements = self.has(rank, ranks, root), sum(sizes[block] for block in wanted)
        in_place = out is x and has == wanted
        if out is not None and (out.numel() != elements or out.dtype != x.dtype or (out is x and has and not in_place)):
            raise UserError(f"{self.collective}: out must be another tensor of {elements} {x.dtype}", FAILED)
        target = x.new_empty(elements) if out is None else out.detach().view(-1)
        source = target if in_place else x.detach().contiguous().view(-1)
        place = (rank, ranks, root) if self.rooted else (rank, ranks)
        program = _program(self.schedule, place, tuple(sizes), has, wanted, in_place)
        counter.record(self.collective, self.name, group, x, "handed", 1, 0)
        return execute(program, source, target, group, self.collective, self.name)

    def _whole(self, x: Tensor, group: ProcessGroup, root: int = 0, out: Tensor | None = None) -> Tensor:
        """For collectives of whole tensors: cut x's elements into the algorithm's blocks."""
        return self._run(x, group, split(x.numel(), self.blocks(group.size())), root, out)

    def _rows(self, x: Tensor, group: ProcessGroup, rows: int, root: int = 0, out: Tensor | None = None) -> Tensor:
        """For collectives that deal out rows: cut `rows` rows like x's over the ranks."""
        width, parts = prod(x.shape[1:]), self._sizes(split(rows, group.size()))
        flat = self._run(x, group, [part * width for part in parts], root, out)
        wanted = self.wants(group.rank(), group.size(), root)
        return flat.view(sum(parts[block] for block in wanted), *x.shape[1:])

    def _sizes(self, parts: list[int]) -> list[int]:
        """Rows of every block, where the parts of one tensor have these."""
        return parts


@lru_cache(maxsize=4096)
def _program(
    schedule: Callable[..., list[Step]],
    place: tuple[int, ...],
    sizes: tuple[int, ...],
    has: range,
    wants: range,
    in_place: bool,
) -> Program:
    """What a schedule means for one rank and size, compiled once."""
    return compile(schedule(*place), sizes, has, wants, in_place)


class AllReduce(Algorithm):
    """x of any shape -> the sum of all x, on every rank."""

    collective = "all_reduce"

    def __call__(self, x: Tensor, group: ProcessGroup, out: Tensor | None = None) -> Tensor:
        return self._whole(x, group, 0, out).view(x.shape)


class Broadcast(Algorithm):
    """x of any shape -> `src`'s x on every rank; elsewhere only x's shape and dtype count."""

    collective, rooted = "broadcast", True

    def has(self, rank: int, ranks: int, root: int = 0) -> range:
        return range(self.blocks(ranks) if rank == root else 0)

    def __call__(self, x: Tensor, group: ProcessGroup, src: int = 0, out: Tensor | None = None) -> Tensor:
        return self._whole(x, group, src, out).view(x.shape)


class Reduce(Algorithm):
    """x of any shape -> the sum of all x on `dst`, None elsewhere."""

    collective, rooted = "reduce", True

    def wants(self, rank: int, ranks: int, root: int = 0) -> range:
        return range(self.blocks(ranks) if rank == root else 0)

    def __call__(self, x: Tensor, group: ProcessGroup, dst: int = 0) -> Tensor | None:
        out = self._whole(x, group, dst)
        return out.view(x.shape) if group.rank() == dst else None


class ReduceScatter(Algorithm):
    """x [rows, ...] -> this rank's part of the sum of all x."""

    collective = "reduce_scatter"

    def wants(self, rank: int, ranks: int, root: int = 0) -> range:
        return range(rank, rank + 1)

    def __call__(self, x: Tensor, group: ProcessGroup, out: Tensor | None = None) -> Tensor:
        return self._rows(x, group, _rows_of(x), 0, out)


class AllGather(Algorithm):
    """x, this rank's part -> [rows, ...] on every rank; `rows` is needed where the parts differ."""

    collective = "all_gather"

    def has(self, rank: int, ranks: int, root: int = 0) -> range:
        return range(rank, rank + 1)

    def __call__(self, x: Tensor, group: ProcessGroup, rows: int | None = None, out: Tensor | None = None) -> Tensor:
        return self._rows(x, group, _gathered(x, group, rows), 0, out)


class Scatter(Algorithm):
    """`src`'s x [rows, ...] -> this rank's part; elsewhere only x's shape and dtype count."""

    collective, rooted = "scatter", True

    def has(self, rank: int, ranks: int, root: int = 0) -> range:
        return range(ranks if rank == root else 0)

    def wants(self, rank: int, ranks: int, root: int = 0) -> range:
        return range(rank, rank + 1)

    def __call__(self, x: Tensor, group: ProcessGroup, src: int = 0) -> Tensor:
        return self._rows(x, group, _rows_of(x), src)


class Gather(Algorithm):
    """x, this rank's part -> [rows, ...] on `dst`, None elsewhere; `rows` is needed where the parts differ."""

    collective, rooted = "gather", True

    def has(self, rank: int, ranks: int, root: int = 0) -> range:
        return range(rank, rank + 1)

    def wants(self, rank: int, ranks: int, root: int = 0) -> range:
        return range(ranks if rank == root else 0)

    def __call__(self, x: Tensor, group: ProcessGroup, dst: int = 0, rows: int | None = None) -> Tensor | None:
        out = self._rows(x, group, _gathered(x, group, rows), dst)
        return out if group.rank() == dst else None


class AllToAll(Algorithm):
    """x [rows, ...] -> every rank's part for this rank, in rank order. Block `i * ranks + j` goes from i to j."""

    collective = "all_to_all"

    def has(self, rank: int, ranks: int, root: int = 0) -> range:
        return range(rank * ranks, (rank + 1) * ranks)

    def wants(self, rank: int, ranks: int, root: int = 0) -> range:
        return range(rank, ranks * ranks, ranks)

    def __call__(self, x: Tensor, group: ProcessGroup, out: Tensor | None = None) -> Tensor:
        return self._rows(x, group, _rows_of(x), 0, out)

    def _sizes(self, parts: list[int]) -> list[int]:
        return parts * len(parts)


def _rows_of(x: Tensor) -> int:
    """Dim 0 of x. Raises UserError for a scalar."""
    if x.ndim == 0:
        raise UserError("a scalar has no rows to scatter or gather: reshape it to [1]", FAILED)
    return x.shape[0]


def _gathered(x: Tensor, group: ProcessGroup, rows: int | None) -> int:
    """Rows of the gathered tensor. Raises UserError where x is not this rank's part of so many."""
    rows = group.size() * _rows_of(x) if rows is None else rows
    if x.shape[0] != (part := split(rows, group.size())[group.rank()]):
        raise UserError(f"position {group.rank()} has {x.shape[0]} of {rows} rows: its part must be {part}", FAILED)
    return rows
