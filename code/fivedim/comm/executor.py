"""The executor: runs any schedule on tensors, and makes no copy that the algorithm does not need.

Blocks are sent as views of where they are. What is received lands where the result is read from: a block to copy at
once, a block to reduce there too, and the rank's own contribution, still in the argument, is added to it. Only the
second reduction of a block needs scratch.
"""

from collections.abc import Sequence
from itertools import accumulate

from torch import Tensor
from torch.distributed import ProcessGroup

from fivedim.comm.collectives import exchange
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
    """Run this rank's `steps` from the blocks in `source`, only read, to those in `target`; returns target's tensor.

    Reductions are sums in the tensors' own dtype, rounded at each hop, as c10d does: reduce 16-bit gradients in float32
    where that matters. Sends the blocks of `steps`, counted where they are handed over; empty blocks are not sent.
    """
    where = dict.fromkeys(source.starts, source)
    for time, step in enumerate(steps):
        sends = [(message.peer, _find(where, message.blocks).view(message.blocks)) for message in step.sends]
        landings = [_landing(message, where, source, target) for message in step.receives]
        receives = [(m.peer, landing.view(m.blocks)) for m, landing in zip(step.receives, landings, strict=True)]
        exchange(_filled(sends), _filled(receives), group, time, collective, algorithm)
        for message, landing in zip(step.receives, landings, strict=True):
            _settle(message, landing, where, source)
    for block in target.starts:
        if where[block] is not target:
            one = range(block, block + 1)
            target.view(one).copy_(where[block].view(one))
    return target.flat


def _find(where: dict[int, Buffer], blocks: range) -> Buffer:
    """The one buffer that holds a run of blocks."""
    (buffer,) = {where[block] for block in blocks}
    return buffer


def _landing(message: Message, where: dict[int, Buffer], source: Buffer, target: Buffer) -> Buffer:
    """Where to receive a message: in the result if it has a place there that is free, else in scratch."""
    wanted = message.blocks[0] in target.starts
    taken = message.reduce and _find(where, message.blocks) is not source
    if wanted and not taken:
        return target
    elements = sum(target.sizes[block] for block in message.blocks)
    return Buffer(message.blocks, target.flat.new_empty(elements), target.sizes)


def _settle(message: Message, landing: Buffer, where: dict[int, Buffer], source: Buffer) -> None:
    """Reduce what landed with what is held. The argument is never written: its share is added to what landed."""
    if message.reduce:
        held = _find(where, message.blocks)
        if held is not source:
            held.view(message.blocks).add_(landing.view(message.blocks))
            return
        landing.view(message.blocks).add_(source.view(message.blocks))
    for block in message.blocks:
        where[block] = landing


def _filled(messages: list[tuple[int, Tensor]]) -> list[tuple[int, Tensor]]:
    return [(peer, x) for peer, x in messages if x.numel()]
