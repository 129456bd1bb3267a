"""A bucket: parameters whose weights lie together, whose gradients travel together, and of which a rank owns a part."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.distributed import ProcessGroup

from fivedim import comm
from fivedim.comm.asynchronous import Pending
from fivedim.errors import FAILED, UserError
from fivedim.ledger.traffic import split


@dataclass
class Piece:
    """Elements `start` to `stop` of a flattened parameter, which this rank trains: `place` in its part of the bucket.

    `master` is what the optimizer steps; `version` is the parameter's when it and the master were last the same.
    """

    name: str
    parameter: nn.Parameter
    start: int
    stop: int
    place: slice
    master: nn.Parameter
    version: int


class Bucket:
    """`parameters` by name (of one dtype, device and optimizer group), from now on views of `weights`.

    This rank owns one part of `weights`, as even as can be, the first ones an element longer. `masters` are that part
    itself if it has at least float32, else a float32 copy. Sends S a rank when made, from position 0.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], group: ProcessGroup):
        self.parameters, self.group = parameters, group
        self.weights = torch.cat([p.detach().flatten() for p in parameters.values()])
        comm.asynchronous.broadcast_(self.weights, group).wait()
        for parameter, view in zip(parameters.values(), self._views(self.weights), strict=True):
            parameter.data = view
        self.sizes = split(self.weights.numel(), group.size())
        self.own = self.weights.split(self.sizes)[group.rank()]
        wide = torch.promote_types(self.own.dtype, torch.float32)
        self.masters = self.own if self.own.dtype == wide else self.own.to(wide)
        self.pieces = list(self._cut())
        self.gradient: Tensor | None = None  # of the rank's own part, the mean over the ranks
        self.contributed: set[str] = set()  # parameters with a gradient on this rank since zero_grad
        self._pending: Pending | None = None
        self.under_way: list[Tensor] = []  # the mean to be, and what is sent for it

    def reduce(self, frees: bool) -> None:
        """Start to average the gradients over the group, zero where there is none; `frees`: and take them out of .grad.

        Each rank divides before the sum: a sum of large fp16 gradients would overflow. Sends (N-1)/N * S.
        """
        first = next(iter(self.parameters.values()))
        flat = self.weights.new_empty(self.weights.numel(), dtype=first.grad_dtype or first.dtype)
        for (name, parameter), view in zip(self.parameters.items(), self._views(flat), strict=True):
            if parameter.grad is None:
                view.zero_()
                continue
            _check(name, parameter.grad, view)
            torch.div(parameter.grad, self.group.size(), out=view)
            self.contributed.add(name)
            if frees:
                parameter.grad = None
        self.under_way = [flat.new_empty(self.own.numel()), flat]
        self._pending = comm.asynchronous.reduce_scatter_(*self.under_way, self.sizes, self.group)

    def settle(self, adds: bool) -> None:
        """Wait for what `reduce` started; `adds`: to the gradient that is there, in place of replacing it."""
        if self._pending:
            self._pending.wait()
            mean, self._pending, self.under_way = self.under_way[0], None, []
            self.gradient = self.gradient.add_(mean) if adds and self.gradient is not None else mean

    def forget(self) -> None:
        """Drop all gradients, those on their way as well."""
        self.settle(adds=False)
        self.gradient = None
        self.contributed.clear()
        for parameter in self.parameters.values():
            parameter.grad = None

    def offer(self, absent: set[str]) -> None:
        """Give every master its gradient, in its own dtype; none to the parameters that are `absent`."""
        wide = self.gradient if self.gradient is None else self.gradient.to(self.masters.dtype)
        for piece in self.pieces:
            piece.master.grad = None if piece.name in absent else wide[piece.place]

    def rebuild_masters_(self) -> None:
        """Take over weights that someone else wrote; a master's low bits are then zero."""
        for piece in self.pieces:
            if piece.parameter._version != piece.version:
                piece.master.copy_(self.own[piece.place])
                piece.version = piece.parameter._version

    def publish(self) -> Pending:
        """Write the masters into this rank's part and start to gather all of them. Sends (N-1)/N * S."""
        if self.masters is not self.own:
            self.own.copy_(self.masters)
        increment_version(self.parameters.values())  # a graph that still needs the old weights must not be used
        for piece in self.pieces:
            piece.version, piece.master.grad = piece.parameter._version, None
        return comm.asynchronous.all_gather_(self.weights, self.sizes, self.group)

    def _views(self, flat: Tensor) -> list[Tensor]:
        parameters = self.parameters.values()
        return [x.view(p.shape) for x, p in zip(flat.split([p.numel() for p in parameters]), parameters, strict=True)]

    def _cut(self):
        """The pieces: what of each parameter is in this rank's part."""
        begin = sum(self.sizes[: self.group.rank()])
        end, at = begin + self.own.numel(), 0
        for name, parameter in self.parameters.items():
            start, stop = max(begin - at, 0), min(end - at, parameter.numel())
            if start < stop:
                place = slice(at + start - begin, at + stop - begin)
                yield Piece(name, parameter, start, stop, place, nn.Parameter(self.masters[place]), parameter._version)
            at += parameter.numel()


def _check(name: str, gradient: Tensor, place: Tensor) -> None:
    if gradient.layout != place.layout or gradient.dtype != place.dtype:
        raise UserError(
            f"{name}: its gradient is {gradient.layout} {gradient.dtype}, its bucket {place.layout} {place.dtype}: "
            "use dense gradients, and set the precision before sharding the model",
            FAILED,
        )
