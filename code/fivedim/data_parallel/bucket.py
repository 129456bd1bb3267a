"""A bucket: gradients that lie and travel together."""

import torch
from torch import nn
from torch.distributed import ProcessGroup

from fivedim import comm
from fivedim.comm.asynchronous import Pending
from fivedim.errors import FAILED, UserError


class Bucket:
    """Gradients of `parameters` (by name; one dtype, one device), averaged in one all-reduce.

    `flat` holds one gradient after another, then one element for each that says whether any rank has it: a gradient
    that no rank has stays None, one that some ranks have is averaged on all. `.grad` is a view of `flat` as soon as
    the backward has made it, so that gradients exist once.
    """

    def __init__(self, parameters: dict[str, nn.Parameter]):
        self.parameters = parameters
        first, sizes = next(iter(parameters.values())), [p.numel() for p in parameters.values()]
        self.flat = torch.empty(sum(sizes) + len(sizes), dtype=gradient_dtype(first), device=first.device)
        *pieces, self.owned = self.flat.split([*sizes, len(sizes)])
        self.views = {n: piece.view_as(p) for (n, p), piece in zip(parameters.items(), pieces, strict=True)}

    def take(self, name: str) -> None:
        """Move a gradient into the bucket, unless it is there."""
        parameter, view = self.parameters[name], self.views[name]
        gradient = parameter.grad
        if gradient is view:
            return
        if gradient.layout != view.layout or gradient.dtype != view.dtype:
            raise UserError(
                f"{name}: its gradient is {gradient.layout} {gradient.dtype}, its bucket {view.layout} {view.dtype}: "
                "use dense gradients, and set the precision before wrapping the model",
                FAILED,
            )
        view.copy_(gradient)
        parameter.grad = view

    def launch(self, group: ProcessGroup) -> Pending:
        """Start to average over the group.

        Each rank divides before the sum, in at least float32 and rounded to the gradients' dtype: a sum of large fp16
        gradients would overflow; a gradient that is subnormal in fp16 may become 0. Sends 2(N-1)/N of the bucket: its
        gradients and an element a gradient.
        """
        absent = self._absent()
        for name in self.parameters.keys() - absent:
            self.take(name)
        for name in absent:
            self.views[name].zero_()
        self.owned.copy_(torch.tensor([name not in absent for name in self.parameters]))
        self.flat.div_(group.size())
        return comm.asynchronous.all_reduce_(self.flat, group)

    def adopt(self) -> None:
        """Once averaged: take up gradients that only other ranks had. The host reads `owned` only if one is missing."""
        if absent := self._absent():
            owned = dict(zip(self.parameters, self.owned.tolist(), strict=True))
            for name in absent:
                self.parameters[name].grad = self.views[name] if owned[name] else None

    def _absent(self) -> set[str]:
        return {name for name, parameter in self.parameters.items() if parameter.grad is None}


def gradient_dtype(parameter: nn.Parameter) -> torch.dtype:
    """The dtype in which a parameter's gradients are summed."""
    return parameter.grad_dtype or parameter.dtype
