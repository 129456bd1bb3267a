"""Data parallelism that communicates under the backward."""

from torch import nn
from torch.distributed import ProcessGroup

from fivedim.comm.asynchronous import Pending
from fivedim.data_parallel.replica import Bucketed
from fivedim.errors import FAILED, UserError


class Overlapped(Bucketed):
    """As Bucketed, but a bucket leaves as soon as it and all before it are complete. Source: Li et al., VLDB 2020.

    A bucket with an unused parameter, and all after it, leave at the end of the backward. Re-entrant checkpointing of a
    layer that is used twice completes a gradient twice: if its bucket has left by then, UserError names it.

    Sends what Bucketed sends, each bucket while the backward of the layers below it runs.
    """

    def __init__(self, module: nn.Module, group: ProcessGroup, cap_mib: float | None = None):
        super().__init__(module, group, cap_mib)
        self._pending: list[Pending] = []  # the first buckets, which have left
        self._end()

    def _ready(self, index: int, name: str, _: nn.Parameter) -> None:
        super()._ready(index, name, _)
        if not self._backward.running:
            return
        if index < len(self._pending):
            raise UserError(
                f"{name}: re-entrant checkpointing added to its gradient after it was sent: use use_reentrant=False, "
                "or data_parallel.Bucketed",
                FAILED,
            )
        self._missing[index].discard(name)
        while len(self._pending) < len(self.buckets) and not self._missing[len(self._pending)]:
            self._launch()

    def _launch(self) -> None:
        """The next bucket leaves."""
        self._pending.append(self.buckets[len(self._pending)].launch(self.group))

    def _finish(self) -> None:
        while len(self._pending) < len(self.buckets):
            self._launch()
        self._end()
        for bucket in self.buckets:
            bucket.adopt()

    def _end(self) -> None:
        super()._end()
        for pending in self._pending:
            pending.wait()
        self._pending.clear()
        self._missing = [set(bucket.parameters) for bucket in self.buckets]
