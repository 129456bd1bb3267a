"""A backward as those see it who communicate under it: when it begins and is over, and whether it is to communicate."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.autograd import Variable
from torch.autograd.graph import register_multi_grad_hook
from torch.utils._pytree import tree_iter


class Backward:
    """Calls `over` once at the end of every backward that goes through a watched output. Sends nothing.

    It begins at the output, not at a parameter: a parameter's hook may run in a backward of its own inside this one, as
    re-entrant checkpointing starts them, and would take that one's end for this one's.
    """

    def __init__(self, over: Callable[[], None]):
        self.running, self._over = False, over

    def watch(self, output: Any) -> None:
        """The next backward from `output`, tensors in any nesting, is one of ours, unless it has no graph."""
        graph = [x for x in tree_iter(output) if isinstance(x, Tensor) and x.requires_grad]
        if graph:
            register_multi_grad_hook(graph, self._begin, mode="any")

    def _begin(self, _: Tensor) -> None:
        if not self.running:
            self.running = True
            Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self._over()
        self.running = False


class Synchronized:
    """Averages gradients over ranks under every backward, but for those whose forward was inside `no_sync`."""

    _synchronizes = True

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Forwards inside have backwards that only accumulate, each rank its own gradients. Sends no gradients."""
        before, self._synchronizes = self._synchronizes, False
        try:
            yield
        finally:
            self._synchronizes = before
