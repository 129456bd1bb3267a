"""Mixed precision (Micikevicius et al. 2018) with bf16: the model computes in bf16, the optimizer steps fp32 masters.

A parameter costs 2 bytes for its compute weight, 2 for its gradient, 4 for its master and 8 for Adam's moments: 16.
With gradients accumulated in fp32 in place of bf16 it is 18. In a step the fp32 copy of a bf16 gradient lives for one
tensor at a time, so the peak is not 20.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from fivedim.errors import UserError


class MixedPrecision:
    """Turn `parameters` into compute weights of `compute` dtype in place, and train their masters with an optimizer.

    `optimizer` makes one from a list of tensors (it needs `update_`, `tensors`, `state_dict` and `load_state_dict`).
    `accumulate` is the dtype in which gradients are summed over microbatches (default: the compute dtype).

    A compute weight that someone else wrote since the last step (a checkpoint loaded into the model, a broadcast, an
    in-place change) is the truth: its master is rebuilt from it before the next step. Writes through `.data` go unseen.
    `load_state_dict` restores masters and weights to the last bit; a state without masters is an error. Sends nothing.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        optimizer: Callable[[list[Tensor]], Any],
        compute: torch.dtype = torch.bfloat16,
        accumulate: torch.dtype | None = None,
    ):
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.master = [p.data.to(torch.promote_types(p.dtype, torch.float32)) for p in self.parameters]
        for parameter in self.parameters:
            parameter.data = parameter.data.to(compute)
            parameter.grad_dtype = accumulate or compute
        self.optimizer = optimizer(self.master)
        self._written = [parameter._version for parameter in self.parameters]

    @torch.no_grad()
    def step(self) -> None:
        """One step of every master whose weight has a gradient, and its copy back into the compute weight."""
        self.rebuild_masters_()
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is not None:
                self.optimizer.update_(index, parameter.grad.to(self.master[index].dtype))
                self._write(index)

    @torch.no_grad()
    def rebuild_masters_(self) -> None:
        """Take over every compute weight that was written by someone else; its low bits are then zero."""
        for index, parameter in enumerate(self.parameters):
            if parameter._version != self._written[index]:
                self.master[index].copy_(parameter)
                self._written[index] = parameter._version

    def _write(self, index: int) -> None:
        self.parameters[index].copy_(self.master[index])
        self._written[index] = self.parameters[index]._version

    def zero_grad(self) -> None:
        """Forget the gradients and free their memory."""
        for parameter in self.parameters:
            parameter.grad = None

    def tensors(self) -> dict[str, list[Tensor]]:
        """All that is kept between steps, by kind: parameters, gradients, master, and the optimizer's by its names."""
        kinds = self.optimizer.tensors()
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        return kinds | {"parameters": self.parameters, "gradients": gradients, "master": kinds["parameters"]}

    def state_dict(self) -> dict[str, Any]:
        """Masters and the optimizer's state; the tensors are not copied."""
        self.rebuild_masters_()
        return {"master": self.master, **self.optimizer.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Copy masters and state in, and the masters into the weights. Raises UserError without masters."""
        if len(saved.get("master", ())) != len(self.parameters):
            raise UserError("checkpoint: no master for each weight: load its weights into the model instead")
        self.optimizer.load_state_dict(saved)
        for index, master in enumerate(self.master):
            master.copy_(saved["master"][index])
            self._write(index)
