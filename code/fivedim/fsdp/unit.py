"""A unit: parameters that are gathered, and whose gradients are reduced, together."""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from fivedim import comm
from fivedim.comm.asynchronous import Pending
from fivedim.errors import FAILED, UserError
from fivedim.fsdp.layout import Layout, shard_shape

Places = dict[nn.Parameter, list[tuple[nn.Module, str]]]  # where in the model each parameter is


@dataclass(frozen=True)
class Gathering:
    """Parameters under way into `whole`, one rank's shards after another's."""

    whole: Tensor
    pending: Pending

    def wait(self) -> Tensor:
        """The whole, once it is here."""
        self.pending.wait()
        return self.whole


class Unit:
    """The parameters in `places`, of one dtype, cut over `group`; this rank's `shards` take their places.

    A shard is a parameter of its own: rows of the tensor, or a flat piece of it where the layout cuts rows; it may be
    empty. Raises UserError where dtypes or devices differ. Sends what its methods say.
    """

    def __init__(self, name: str, module: nn.Module, places: Places, group: ProcessGroup, layout: Layout):
        parameters = list(places)
        if len({(p.dtype, p.device) for p in parameters}) > 1:
            raise UserError(f"{name or 'the model'}: its parameters differ in dtype or device: make them alike", FAILED)
        self.name, self.module, self.group, self.places = name, module, group, list(places.values())
        self.dtype, self.device = parameters[0].dtype, parameters[0].device
        self.shapes = [p.shape for p in parameters]
        self.cuts = layout(self.shapes, group.size())
        self.sizes = [sum(cuts) for cuts in zip(*self.cuts, strict=True)]
        pieces = [index for rank in range(group.size()) for index, cuts in enumerate(self.cuts) if cuts[rank]]
        self.in_order = pieces == sorted(pieces)  # gathered tensors lie end to end
        self.shards = [nn.Parameter(self.cut(i, p.detach()).clone(), p.requires_grad) for i, p in enumerate(parameters)]
        self.unreduced: list[Tensor | None] | None = None  # whole gradients that no backward has synchronized yet
        self.show(self.shards)

    def show(self, tensors: Iterable[Tensor]) -> None:
        """Put tensors where the model looks for its parameters."""
        for places, tensor in zip(self.places, tensors, strict=True):
            for module, name in places:
                module._parameters[name] = tensor

    def cut(self, index: int, whole: Tensor) -> Tensor:
        """This rank's part, a view or a copy, of a whole tensor like parameter number `index`."""
        cuts, rank = self.cuts[index], self.group.rank()
        return whole.reshape(-1).split(cuts)[rank].view(shard_shape(self.shapes[index], cuts, rank))

    def gather(self, shards: Iterable[Tensor], dtype: torch.dtype) -> Gathering:
        """Launch: all ranks' tensors like `shards`. Sends (N-1)/N * S in `dtype`."""
        whole = torch.empty(sum(self.sizes), dtype=dtype, device=self.device)
        torch.cat([x.detach().reshape(-1) for x in shards], out=whole.split(self.sizes)[self.group.rank()])
        return Gathering(whole, comm.asynchronous.all_gather_(whole, self.sizes, self.group))

    def unpack(self, whole: Tensor) -> list[Tensor]:
        """Gathered tensors in their shapes: views of `whole` if they lie in order, else copies, so that it may go."""
        if self.in_order:
            tensors = whole.split([sum(cuts) for cuts in self.cuts])
        else:
            pieces, count = whole.split(list(chain(*zip(*self.cuts, strict=True)))), len(self.cuts)
            tensors = [torch.cat(pieces[index::count]) for index in range(count)]
        return [x.view(shape) for x, shape in zip(tensors, self.shapes, strict=True)]

    def pack(self, tensors: Sequence[Tensor | None], dtype: torch.dtype) -> Tensor:
        """The opposite: whole tensors, None for zeros, cut, and one rank's pieces after another's."""
        whole = torch.empty(sum(self.sizes), dtype=dtype, device=self.device)
        flats = [
            torch.zeros(sum(cuts), dtype=dtype, device=self.device) if x is None else x.reshape(-1)
            for x, cuts in zip(tensors, self.cuts, strict=True)
        ]
        pieces = [flat.split(cuts) for flat, cuts in zip(flats, self.cuts, strict=True)]
        return torch.cat(list(chain(*zip(*pieces, strict=True))), out=whole)

    def keep(self, gradients: Iterable[Tensor | None], dtype: torch.dtype) -> None:
        """Add whole gradients to the unreduced ones, in `dtype`."""
        both = zip(self.unreduced or [None] * len(self.shapes), gradients, strict=True)
        terms = [[x.to(dtype) for x in pair if x is not None] for pair in both]
        self.unreduced = [sum(pair[1:], pair[0]) if pair else None for pair in terms]

    def reduce(self, gradients: Sequence[Tensor | None], dtype: torch.dtype) -> tuple[Tensor, Pending]:
        """Launch: this rank's part of the sum of all whole gradients, in the shards' dtype.

        Sends (N-1)/N * S in `dtype`.
        """
        own = torch.empty(self.sizes[self.group.rank()], dtype=self.dtype, device=self.device)
        whole = self.pack(gradients, dtype)
        return own, comm.asynchronous.reduce_scatter_(own, whole, self.sizes, self.group)

    def accumulate(self, own: Tensor) -> None:
        """Add this rank's part of the reduced gradients, flat, to the shards' `.grad`."""
        rank = self.group.rank()
        for shard, piece in zip(self.shards, own.split([cuts[rank] for cuts in self.cuts]), strict=True):
            if shard.requires_grad:
                piece = piece.view_as(shard)
                shard.grad = piece if shard.grad is None else shard.grad.add_(piece)


def divide(model: nn.Module, modules: Iterable[nn.Module]) -> list[tuple[str, nn.Module, Places]]:
    """The units of a model: name, module and parameters of each of `modules`; before them, the model's own.

    A parameter belongs to the innermost of them that has it, and to the model if several have it. Raises UserError for
    a module that is none of the model's.
    """
    names = {module: name for name, module in model.named_modules()}
    found: dict[nn.Module, Places] = {model: {}, **{module: {} for module in modules}}
    if strangers := [type(module).__name__ for module in found if module not in names]:
        raise UserError(f"unit {strangers[0]}: it is no part of the model: take units from it", FAILED)
    owners: dict[nn.Parameter, set[nn.Module]] = {}
    places: Places = {}
    for unit, module in within(model, model, found):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                owners.setdefault(parameter, set()).add(unit)
                places.setdefault(parameter, []).append((module, name))
    for parameter, where in places.items():
        unit, *more = owners[parameter]
        found[model if more else unit][parameter] = where
    return [(names[module], module, mine) for module, mine in found.items() if mine]


def within(module: nn.Module, unit: nn.Module, units: Container[nn.Module]) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Every module from `module` down, after the innermost of `units` that it is in, as often as it is somewhere."""
    unit = module if module in units else unit
    yield unit, module
    for child in module.children():
        yield from within(child, unit, units)
