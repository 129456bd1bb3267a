"""The executor: runs any schedule on tensors, without a copy or a wait that the algorithm does not need.

Blocks are sent as views of where they are. What is received lands where the result is read from: a block to copy at
once, a block to reduce there too, and the rank's own contribution, still in the argument, is added to it; only the
second reduction of a block needs scratch. A step starts when the blocks that it touches have arrived, not when the
step before is over, so that several are under way at once.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate

from torch import Tensor
from torch.distributed import ProcessGroup

from fivedim.comm.collectives import Flight, launch
from fivedim.comm.schedule import Message, Step


class Buffer:
    """Blocks `ids` one after another in a flat, contiguous tensor; `sizes` are all blocks' elements, by number."""

    def __init__(self, ids: range, flat: Tensor, sizes: Sequence[int]):
        self.flat, self.sizes = flat, sizes
        self.starts = dict(zip(ids, accumulate((sizes[block] for block in ids), initial=0), strict=False))

    def view(self, blocks: range) -> Tensor:
        """A run of the blocks, as a view."""
        last = blocks[-1]
        return self.flat[self.starts[blocks[0]] : self.starts[last] + self.sizes[last]]


def execute(
    steps: Sequence[Step],
    source: Buffer,
    target: Buffer,
    group: ProcessGroup,
    collective: str,
    algorithm: str,
) -> Tensor:
    """Run this rank's `steps` from the blocks in `source` to those in `target`; returns target's tensor.

    `source` is only read, unless it is `target` itself. Reductions are sums in the tensors' own dtype, rounded at each
    hop, as c10d does: reduce 16-bit gradients in float32 where that matters. Sends the blocks of `steps`, counted where
    they are handed over; empty blocks are not sent.
    """
    blocks = _Blocks(source, target)
    for time, step in enumerate(steps):
        for message in (*step.sends, *step.receives):
            blocks.settle(message.blocks)
        sends = [(message.peer, blocks.find(message.blocks).view(message.blocks)) for message in step.sends]
        landings = [blocks.landing(message) for message in step.receives]
        receives = [(m.peer, landing.view(m.blocks)) for m, landing in zip(step.receives, landings, strict=True)]
        flight = launch(_filled(sends), _filled(receives), group, time, collective, algorithm)
        blocks.depart(step, landings, flight)
    return blocks.finish()


class _Blocks:
    """Where every block is, what is on its way to it, and what is still being read from it."""

    def __init__(self, source: Buffer, target: Buffer):
        self.target, self.frozen = target, source if source is not target else None
        self.where = dict.fromkeys(source.starts, source)
        self.arriving: dict[int, tuple[Message, Buffer, Flight]] = {}
        self.leaving: dict[int, list[Flight]] = {}
        self.spare: list[Tensor] = []  # scratch to use again: fresh memory costs a page fault for every 4 KiB

    def find(self, blocks: range) -> Buffer:
        """The one buffer that holds a run of blocks."""
        (buffer,) = {self.where[block] for block in blocks}
        return buffer

    def landing(self, message: Message) -> Buffer:
        """Where to receive a message: in the result if it has a place there that is free, else in scratch."""
        wanted = message.blocks[0] in self.target.starts
        taken = message.reduce and self.find(message.blocks) is self.target
        if wanted and not taken:
            self._release(message.blocks)
            return self.target
        elements = sum(self.target.sizes[block] for block in message.blocks)
        fits = self.spare and self.spare[-1].numel() >= elements
        scratch = self.spare.pop() if fits else self.target.flat.new_empty(elements)
        return Buffer(message.blocks, scratch, self.target.sizes)

    def depart(self, step: Step, landings: Sequence[Buffer], flight: Flight) -> None:
        """Note what a step sends and receives."""
        for message, landing in zip(step.receives, landings, strict=True):
            self.arriving.update(dict.fromkeys(message.blocks, (message, landing, flight)))
        for message in step.sends:
            for block in message.blocks:
                self.leaving.setdefault(block, []).append(flight)

    def settle(self, blocks: Iterable[int]) -> None:
        """Wait for what is on its way to the blocks, and reduce it with what is held.

        What is held in the argument is added to what landed instead: the argument is not written.
        """
        for block in blocks:
            if block in self.arriving:
                message, landing, flight = self.arriving[block]
                flight.arrive()
                for other in message.blocks:
                    del self.arriving[other]
                self._merge(message, landing)

    def _merge(self, message: Message, landing: Buffer) -> None:
        if message.reduce:
            held = self.find(message.blocks)
            if held is not self.frozen:
                self._release(message.blocks)
                held.view(message.blocks).add_(landing.view(message.blocks))
                self.spare.append(landing.flat)
                return
            landing.view(message.blocks).add_(held.view(message.blocks))
        for block in message.blocks:
            self.where[block] = landing

    def _release(self, blocks: Iterable[int]) -> None:
        """Wait until the blocks are sent, so that they may be written."""
        for block in blocks:
            for flight in self.leaving.pop(block, ()):
                flight.depart()

    def finish(self) -> Tensor:
        """Wait for everything, and copy what the argument alone has into the result."""
        self.settle(list(self.arriving))
        self._release(list(self.leaving))
        for block in self.target.starts:
            if self.where[block] is not self.target:
                one = range(block, block + 1)
                self.target.view(one).copy_(self.where[block].view(one))
        return self.target.flat


def _filled(messages: list[tuple[int, Tensor]]) -> list[tuple[int, Tensor]]:
    return [(peer, x) for peer, x in messages if x.numel()]
