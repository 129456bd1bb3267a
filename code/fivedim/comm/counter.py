"""The counter: calls and bytes by collective, algorithm and axis, recorded where communication leaves the process."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor
from torch.distributed import ProcessGroup


class Kind(NamedTuple):
    """What is told apart. `source` is `handed` (bytes given to a send) or `formula` (a call that c10d carries out)."""

    collective: str
    algorithm: str
    axis: str
    dtype: str
    source: str


@dataclass
class Traffic:
    """What this rank sent: calls and bytes of each kind."""

    counts: dict[Kind, list[int]] = field(default_factory=dict)

    def add(self, kind: Kind, calls: int, sent: int) -> None:
        """Count `calls` operations and `sent` bytes more."""
        total = self.counts.setdefault(kind, [0, 0])
        total[0] += calls
        total[1] += sent

    def calls(self, **where: str) -> int:
        """How many operations; `where` names fields of Kind, as in `calls(collective="all_reduce", axis="dp")`."""
        return sum(calls for calls, _ in self._select(where))

    def bytes(self, **where: str) -> int:
        """How many bytes this rank sent; `where` as for `calls`."""
        return sum(sent for _, sent in self._select(where))

    def rows(self) -> list[dict]:
        """One flat dict a kind: Kind's fields, calls, bytes."""
        return [{**kind._asdict(), "calls": calls, "bytes": sent} for kind, (calls, sent) in self.counts.items()]

    def _select(self, where: dict[str, str]) -> Iterator[list[int]]:
        if unknown := where.keys() - set(Kind._fields):
            raise TypeError(f"no such field: {', '.join(sorted(unknown))}; there are {', '.join(Kind._fields)}")
        return (
            count
            for kind, count in self.counts.items()
            if all(getattr(kind, name) == value for name, value in where.items())
        )


# Open counters of this process, which is one rank. Not a context variable: autograd runs a GPU's backward on threads of
# its own, and what is sent there must be counted too.
_open: list[Traffic] = []


@contextmanager
def count() -> Iterator[Traffic]:
    """Count what this rank sends while the block runs. Blocks nest: an inner one's traffic is also the outer one's."""
    traffic = Traffic()
    _open.append(traffic)
    try:
        yield traffic
    finally:
        _open[:] = [other for other in _open if other is not traffic]


def record(collective: str, algorithm: str, group: ProcessGroup, x: Tensor, source: str, calls: int, sent: int) -> None:
    """Add an operation on tensors like x to every open counter; the axis is the group's description."""
    if _open:
        kind = Kind(collective, algorithm, group.group_desc, str(x.dtype).removeprefix("torch."), source)
        for traffic in _open:
            traffic.add(kind, calls, sent)
