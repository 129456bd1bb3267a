"""An optimizer is a chain of links: each turns a direction into a better one, the last is taken with the learning rate.

AdamW is Adam then WeightDecay; SGD is WeightDecay then Momentum. The order is the whole difference between a decay that
is decoupled from the gradient's scale and one that is not (Loshchilov and Hutter 2019). A new optimizer is a new link.
"""

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor

from fivedim.errors import UserError

State = dict[str, Tensor]


class Link(Protocol):
    """One step of the chain."""

    def init(self, parameter: Tensor) -> State:
        """The tensors that the link keeps for one parameter, by name."""

    def __call__(self, direction: Tensor, parameter: Tensor, state: State) -> Tensor:
        """The new direction; `state` is brought up to date in place, `direction` and `parameter` are only read."""


class WeightDecay:
    """Add `decay` times the parameter. Keeps nothing, sends nothing."""

    def __init__(self, decay: float):
        self.decay = decay

    def init(self, parameter: Tensor) -> State:
        """No state."""
        return {}

    def __call__(self, direction: Tensor, parameter: Tensor, state: State) -> Tensor:
        """direction + decay * parameter."""
        return direction.add(parameter, alpha=self.decay) if self.decay else direction


class Momentum:
    """The running sum m = momentum * m + direction. Keeps one tensor, sends nothing."""

    def __init__(self, momentum: float):
        self.momentum = momentum

    def init(self, parameter: Tensor) -> State:
        """`momentum`, of the parameter's shape and dtype."""
        return {"momentum": torch.zeros_like(parameter)}

    def __call__(self, direction: Tensor, parameter: Tensor, state: State) -> Tensor:
        """The new momentum, as a tensor of its own."""
        return state["momentum"].mul_(self.momentum).add_(direction).clone()


class Adam:
    """Kingma and Ba 2015: the mean of the gradients over the root of the mean of their squares, both unbiased.

    Keeps two tensors of the parameter's shape and dtype and a step counter of 4 bytes a parameter tensor. The counter
    is each tensor's own because one without gradient takes no step. Sends nothing.
    """

    def __init__(self, betas: tuple[float, float], eps: float):
        self.betas, self.eps = betas, eps

    def init(self, parameter: Tensor) -> State:
        """`exp_avg`, `exp_avg_sq`, `step`."""
        step = torch.zeros((), dtype=torch.float32, device=parameter.device)
        return {"exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter), "step": step}

    def __call__(self, direction: Tensor, parameter: Tensor, state: State) -> Tensor:
        """mean / (sqrt(mean square) + eps)."""
        beta1, beta2 = self.betas
        step = state["step"].add_(1).double()  # 1 - 0.999 has four digits left in fp32
        mean = state["exp_avg"].lerp_(direction, 1 - beta1) / (1 - beta1**step)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(direction, direction, value=1 - beta2) / (1 - beta2**step)
        return mean.div_(square.sqrt_().add_(self.eps))


class Optimizer:
    """parameter -= rate * (the chain's direction), for every parameter that has a gradient; the others are left alone.

    `rate` may be changed between steps. Extra memory in a step is a few times the largest parameter. Sends nothing.
    """

    def __init__(self, parameters: Iterable[Tensor], rate: float, *links: Link):
        self.parameters, self.rate, self.links = list(parameters), rate, links
        self.state: list[State] = [{} for _ in self.parameters]
        for parameter, state in zip(self.parameters, self.state, strict=True):
            for link in links:
                state.update(link.init(parameter.detach()))

    @torch.no_grad()
    def step(self) -> None:
        """One step from the gradients in `.grad`."""
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is not None:
                self.update_(index, parameter.grad)

    @torch.no_grad()
    def update_(self, index: int, gradient: Tensor) -> None:
        """One step of parameter number `index` from `gradient`, which is only read."""
        parameter, direction = self.parameters[index], gradient
        for link in self.links:
            direction = link(direction, parameter, self.state[index])
        parameter.sub_(direction, alpha=self.rate)

    def zero_grad(self) -> None:
        """Forget the gradients and free their memory."""
        for parameter in self.parameters:
            parameter.grad = None

    def tensors(self) -> dict[str, list[Tensor]]:
        """All that is kept between steps, by kind: parameters, gradients, and each state by its name."""
        kinds = {"parameters": self.parameters, "gradients": [p.grad for p in self.parameters if p.grad is not None]}
        for state in self.state:
            for name, tensor in state.items():
                kinds.setdefault(name, []).append(tensor)
        return kinds

    def state_dict(self) -> dict[str, list]:
        """What a checkpoint needs beside the parameters; the tensors are not copied."""
        return {"state": self.state}

    @torch.no_grad()
    def load_state_dict(self, saved: dict[str, list]) -> None:
        """Copy a saved state in. Raises UserError if it belongs to other parameters or links."""
        names = [state.keys() for state in self.state]
        if "state" not in saved or [state.keys() for state in saved["state"]] != names:
            raise UserError("optimizer state: it was saved by another optimizer or model: load the one that made it")
        for state, other in zip(self.state, saved["state"], strict=True):
            for name, tensor in state.items():
                tensor.copy_(other[name])


def adamw(
    parameters: Iterable[Tensor],
    rate: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> Optimizer:
    """AdamW as in torch.optim.AdamW, the same defaults. 8 bytes of fp32 state a parameter. Sends nothing."""
    return Optimizer(parameters, rate, Adam(betas, eps), WeightDecay(weight_decay))


def sgd(
    parameters: Iterable[Tensor], rate: float = 1e-3, momentum: float = 0.0, weight_decay: float = 0.0
) -> Optimizer:
    """SGD as in torch.optim.SGD without dampening. Sends nothing."""
    return Optimizer(parameters, rate, WeightDecay(weight_decay), *([Momentum(momentum)] if momentum else []))
