"""The executor: compiles a schedule to a program, once, and runs it on tensors without a copy or a wait too many.

Blocks are sent as views of where they are. What is received lands where the result is read from: a block to copy at
once, a block to reduce there too, and the rank's own contribution, still in the argument, is added to it; only the
second reduction of a block needs scratch. A step starts when the blocks that it touches have arrived, not when the
step before is over, so that several are under way at once. All of this follows from the schedule and the blocks' sizes
alone, so that a call has nothing to decide: between two messages there is a wait, an addition and two views.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from torch import Tensor
from torch.distributed import ProcessGroup

from fivedim.comm.collectives import launch
from fivedim.comm.schedule import Message, Step

SOURCE, TARGET = 0, 1  # the tensors that a program is run on; those after them are its scratch


class Part(NamedTuple):
    """Elements of one of a program's tensors, by its number."""

    tensor: int
    start: int
    elements: int


class Launch(NamedTuple):
    """Send and receive parts, each with its peer. The n-th launch of a program is its flight n."""

    time: int
    sends: tuple[tuple[int, Part], ...]
    receives: tuple[tuple[int, Part], ...]


class Arrive(NamedTuple):
    """Wait for what a flight receives."""

    flight: int


class Depart(NamedTuple):
    """Wait until what a flight sends may be written."""

    flight: int


class Merge(NamedTuple):
    """Add a part to another, or copy it there."""

    add: bool
    into: Part
    what: Part


class Program(NamedTuple):
    """What one rank does, in order, and the elements of each piece of scratch that it needs."""

    instructions: tuple[Launch | Arrive | Depart | Merge, ...]
    scratch: tuple[int, ...]


def execute(
    program: Program, source: Tensor, target: Tensor, group: ProcessGroup, collective: str, algorithm: str
) -> Tensor:
    """Run a rank's program on flat, contiguous tensors, from `source` to `target`; returns target.

    `source` is only read, unless it is `target` itself. Reductions are sums in the tensors' own dtype, rounded at each
    hop, as c10d does: reduce 16-bit gradients in float32 where that matters. Sends the blocks of the schedule, counted
    where they are handed over; empty blocks are not sent.
    """
    tensors = [source, target, *map(target.new_empty, program.scratch)]
    flights = []
    for instruction in program.instructions:
        match instruction:
            case Launch(time, sends, receives):
                out = [(peer, tensors[x.tensor].narrow(0, x.start, x.elements)) for peer, x in sends]
                into = [(peer, tensors[x.tensor].narrow(0, x.start, x.elements)) for peer, x in receives]
                flights.append(launch(out, into, group, time, collective, algorithm))
            case Arrive(flight):
                flights[flight].arrive()
            case Depart(flight):
                flights[flight].depart()
            case Merge(add, (number, start, elements), (other, begin, _)):
                held, what = tensors[number].narrow(0, start, elements), tensors[other].narrow(0, begin, elements)
                held.add_(what) if add else held.copy_(what)
    return target


def compile(steps: Sequence[Step], sizes: Sequence[int], has: range, wants: range, in_place: bool) -> Program:
    """The program of one rank's `steps`, for blocks of `sizes` elements.

    `has` are the blocks in the source, one after another, and `wants` those in the target; `in_place`: the two are one.
    """
    blocks = _Blocks(sizes, has, wants, in_place)
    for time, step in enumerate(steps):
        blocks.step(time, step)
    blocks.finish()
    return Program(tuple(blocks.instructions), tuple(blocks.scratch))


class _Place(NamedTuple):
    """Where blocks are: the tensor's number, and each block's first element."""

    tensor: int
    starts: dict[int, int]


class _Blocks:
    """Where every block will be, what will be on its way to it, and what will still be read from it."""

    def __init__(self, sizes: Sequence[int], has: range, wants: range, in_place: bool):
        self.sizes = sizes
        self.target = self._place(TARGET, wants)
        self.frozen = None if in_place else self._place(SOURCE, has)
        self.where = dict.fromkeys(has, self.frozen or self.target)
        self.arriving: dict[int, tuple[Message, _Place, int]] = {}
        self.leaving: dict[int, list[int]] = {}
        self.spare: list[int] = []  # scratch to use again: fresh memory costs a page fault for every 4 KiB
        self.scratch: list[int] = []
        self.instructions: list[Launch | Arrive | Depart | Merge] = []
        self.flights = 0

    def step(self, time: int, step: Step) -> None:
        """Launch a step as soon as what it touches has arrived."""
        for message in (*step.sends, *step.receives):
            self._settle(message.blocks)
        sends = [(message.peer, self._part(self._find(message.blocks), message.blocks)) for message in step.sends]
        landings = [self._landing(message) for message in step.receives]
        receives = [
            (message.peer, self._part(landing, message.blocks))
            for message, landing in zip(step.receives, landings, strict=True)
        ]
        self.instructions.append(Launch(time, tuple(_filled(sends)), tuple(_filled(receives))))
        for message, landing in zip(step.receives, landings, strict=True):
            self.arriving.update(dict.fromkeys(message.blocks, (message, landing, self.flights)))
        for message in step.sends:
            for block in message.blocks:
                self.leaving.setdefault(block, []).append(self.flights)
        self.flights += 1

    def finish(self) -> None:
        """Wait for everything, and copy what the argument alone has into the result."""
        self._settle(list(self.arriving))
        self._release(list(self.leaving))
        for block in self.target.starts:
            if self.where[block] is not self.target:
                self._merge(range(block, block + 1), self.target, self.where[block], add=False)

    def _place(self, tensor: int, blocks: range) -> _Place:
        starts = accumulate((self.sizes[block] for block in blocks), initial=0)
        return _Place(tensor, dict(zip(blocks, starts, strict=False)))

    def _part(self, place: _Place, blocks: range) -> Part:
        return Part(place.tensor, place.starts[blocks[0]], sum(self.sizes[block] for block in blocks))

    def _find(self, blocks: range) -> _Place:
        """The one place that holds a run of blocks."""
        first, *others = (self.where[block] for block in blocks)
        assert all(other is first for other in others), f"blocks {blocks} are not in one place"
        return first

    def _landing(self, message: Message) -> _Place:
        """Where to receive a message: in the result if it has a place there that is free, else in scratch."""
        wanted = message.blocks[0] in self.target.starts
        taken = message.reduce and self._find(message.blocks) is self.target
        if wanted and not taken:
            self._release(message.blocks)
            return self.target
        elements = sum(self.sizes[block] for block in message.blocks)
        if self.spare and self.scratch[self.spare[-1]] >= elements:
            number = self.spare.pop()
        else:
            number = len(self.scratch)
            self.scratch.append(elements)
        return self._place(TARGET + 1 + number, message.blocks)

    def _settle(self, blocks: Iterable[int]) -> None:
        """Wait for what is on its way to the blocks, and reduce it with what is held.

        What is held in the argument is added to what landed instead: the argument is not written.
        """
        for block in blocks:
            if block not in self.arriving:
                continue
            message, landing, flight = self.arriving[block]
            self.instructions.append(Arrive(flight))
            for other in message.blocks:
                del self.arriving[other]
            self._take(message, landing)

    def _take(self, message: Message, landing: _Place) -> None:
        if message.reduce:
            held = self._find(message.blocks)
            if held is not self.frozen:
                self._release(message.blocks)
                self._merge(message.blocks, held, landing, add=True)
                self.spare.append(landing.tensor - TARGET - 1)
                return
            self._merge(message.blocks, landing, held, add=True)
        self.where.update(dict.fromkeys(message.blocks, landing))

    def _merge(self, blocks: range, into: _Place, what: _Place, add: bool) -> None:
        part = self._part(into, blocks)
        if part.elements:
            self.instructions.append(Merge(add, part, self._part(what, blocks)))

    def _release(self, blocks: Iterable[int]) -> None:
        """Wait until the blocks are sent, so that they may be written."""
        for block in blocks:
            self.instructions.extend(map(Depart, self.leaving.pop(block, ())))


def _filled(messages: list[tuple[int, Part]]) -> Iterator[tuple[int, Part]]:
    return ((peer, part) for peer, part in messages if part.elements)
