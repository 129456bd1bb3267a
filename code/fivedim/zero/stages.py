"""The stages as optimizers of a module: gradients are averaged under its backward, a step ends with equal weights."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from fivedim import comm
from fivedim.comm.backward import Backward, Synchronized
from fivedim.errors import FAILED, UserError
from fivedim.ledger import buckets
from fivedim.zero import checkpoint
from fivedim.zero.bucket import Bucket

IN_FLIGHT = 2  # buckets: what keeps the links busy, and what stage 2 may hold of other ranks' gradients


class Stage1(Synchronized):
    """Train `module` on the group's ranks, each with its part of the batch; a rank keeps 1/N of the optimizer's state.

    `optimizer` makes any elementwise optimizer, of torch's or `optim`'s, from a list of tensors, or, where `groups` are
    given, from torch's groups: dicts with `params`, here of the module. What is in none of them, or frozen, is left
    alone. Gradients are averaged as by data parallelism, in buckets of `cap_mib` MiB, the last
    parameter's first (`None`: torch's default caps); the mean is right for losses that are means over equally large
    parts. A parameter may be tied, or without gradient on some ranks, or on all: then it is not stepped.

    A rank keeps all weights; all gradients, until `zero_grad`; and of its own part, 1/N, the optimizer's state and
    float32 masters, but no masters where the weights have at least float32. Weights that someone else wrote, alike on
    every rank, are the truth: their masters are rebuilt. If the last backward before a step was inside `no_sync`, the
    step averages. Buffers are position 0's when made, then each rank's own.

    Sends (N-1)/N of the gradients under each backward whose forward was outside `no_sync`, (N-1)/N of the weights in
    each step, and there 4 bytes a parameter tensor that say whether any rank has its gradient, in one all-reduce. All
    weights and buffers from position 0 when made.
    """

    frees = False  # whether gradients leave the parameters as they are averaged

    def __init__(
        self,
        module: nn.Module,
        group: ProcessGroup,
        optimizer: Callable[[list], Any],
        groups: Sequence[dict] | None = None,
        cap_mib: float | None = None,
    ):
        self.group = group
        listed = [list(module.parameters())] if groups is None else [list(options["params"]) for options in groups]
        self.buckets, trained = _deal_out(module, group, listed, cap_mib)
        for x in (*module.buffers(), *(p for p in module.parameters() if p not in trained)):
            comm.broadcast_(x, group)
        masters = _masters(self.buckets, trained, len(listed))
        given = zip(groups or (), masters, strict=False)
        self.optimizer = optimizer([options | {"params": mine} for options, mine in given] or masters[0])
        for index, bucket in enumerate(self.buckets):
            for name, parameter in bucket.parameters.items():
                parameter.register_post_accumulate_grad_hook(partial(self._ready, index, name))
        module.register_forward_hook(self._watch)
        self._backward = Backward(self._finish)
        self._averaged = True  # nothing in .grad that is not in the buckets' gradients
        self._restart()

    @torch.no_grad()
    def step(self) -> None:
        """Step this rank's part by the averaged gradients, and gather everybody's."""
        self._average_rest()
        absent = self._absent()
        for bucket in self.buckets:
            bucket.rebuild_masters_()
            bucket.offer(absent)
        self.optimizer.step()
        self._publish()
        if not self.frees:
            self._averaged = False
            for bucket in self.buckets:
                bucket.gradient = None  # to be had again from .grad

    def zero_grad(self) -> None:
        """Forget the gradients and free their memory."""
        self._averaged = True
        for bucket in self.buckets:
            bucket.forget()

    @torch.no_grad()
    def clip_(self, max_norm: float, order: float = 2.0) -> Tensor:
        """Clip the gradients of the next step to a global norm; returns it as it was. Sends as `comm.norm.clip_`."""
        self._average_rest()
        gradients = [bucket.gradient for bucket in self.buckets if bucket.gradient is not None]
        return comm.norm.clip_({self.group: gradients}, max_norm, order)

    def tensors(self) -> dict[str, list[Tensor]]:
        """All that is kept between steps, by kind: parameters, gradients, master, and the optimizer's by its names."""
        parameters = [p for bucket in self.buckets for p in bucket.parameters.values()]
        gradients = [p.grad for p in parameters] + [bucket.gradient for bucket in self.buckets]
        kinds = {"parameters": parameters, "gradients": [x for x in gradients if x is not None]}
        kinds["master"] = [bucket.masters for bucket in self.buckets if bucket.masters is not bucket.own]
        for state in checkpoint.state_of(self.optimizer).values():
            for name, value in state.items():
                if isinstance(value, Tensor):
                    kinds.setdefault(name, []).append(value)
        return kinds

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """This rank's part of a checkpoint: copies of its masters, and the optimizer's state itself. Sends nothing."""
        for bucket in self.buckets:
            bucket.rebuild_masters_()
        return checkpoint.part(self.buckets, self.optimizer)

    @torch.no_grad()
    def load_state_dict(self, parts: Sequence[dict[str, Any]]) -> None:
        """Go on from the parts that all ranks saved, however many they were. Sends (N-1)/N of the weights."""
        checkpoint.load_(self.buckets, self.optimizer, parts)
        self._publish()

    def _watch(self, module: nn.Module, args: tuple, output: Any) -> None:
        """The module's forward is over."""
        if self._backward.running:  # an exception cut the last one short
            self._backward.running = self._averaged = False
            self._restart()
        if self._synchronizes and torch.is_grad_enabled():
            self._backward.watch(output)

    def _ready(self, index: int, name: str, _: nn.Parameter) -> None:
        """The backward has added to a gradient of bucket `index`; buckets leave in order, each when it is complete."""
        if not self._backward.running:
            self._averaged = False
            return
        if index < self._left:
            raise UserError(
                f"{name}: re-entrant checkpointing added to its gradient after it was sent: use use_reentrant=False, "
                "or no_sync",
                FAILED,
            )
        self._missing[index].discard(name)
        while self._left < len(self.buckets) and not self._missing[self._left]:
            self._leave()

    def _leave(self) -> None:
        """The next bucket leaves."""
        if self._left >= IN_FLIGHT:
            self.buckets[self._left - IN_FLIGHT].settle(adds=self.frees)
        self.buckets[self._left].reduce(self.frees)
        self._left += 1

    def _finish(self) -> None:
        """The backward is over: what is not complete leaves as it is."""
        while self._left < len(self.buckets):
            self._leave()
        self._restart()
        self._averaged = True

    def _restart(self) -> None:
        """Nothing is under way."""
        for bucket in self.buckets:
            bucket.settle(adds=self.frees)
        self._left, self._missing = 0, [set(bucket.parameters) for bucket in self.buckets]

    def _average_rest(self) -> None:
        """Average what backwards without synchronization have left in .grad."""
        if not self._averaged:
            self._finish()

    def _absent(self) -> set[str]:
        """Parameters whose gradient no rank has. The host reads the answer only if one is missing here."""
        here = {name: name in bucket.contributed for bucket in self.buckets for name in bucket.parameters}
        device = self.buckets[0].weights.device if self.buckets else "cpu"
        ranks = torch.tensor(list(here.values()), dtype=torch.int32, device=device)
        comm.asynchronous.all_reduce_(ranks, self.group).wait()
        if all(here.values()):
            return set()
        return {name for name, count in zip(here, ranks.tolist(), strict=True) if not count}

    def _publish(self) -> None:
        for pending in [bucket.publish() for bucket in self.buckets]:
            pending.wait()


class Stage2(Stage1):
    """As Stage1, but of the gradients, too, a rank keeps its part alone: a bucket's are freed as they are averaged.

    Backwards of several microbatches each average and add up, at (N-1)/N of the gradients each; inside `no_sync` they
    are kept whole.
    """

    frees = True


def _deal_out(
    module: nn.Module, group: ProcessGroup, listed: list[list[nn.Parameter]], cap_mib: float | None
) -> tuple[list[Bucket], dict[nn.Parameter, int]]:
    """The buckets of all that is trained, and the number of each parameter's optimizer group."""
    number = {p: index for index, parameters in enumerate(listed) for p in parameters if p.requires_grad}
    named = [(name, p) for name, p in module.named_parameters() if p in number][::-1]
    kinds = [(p.grad_dtype, p.dtype, p.device, number[p]) for _, p in named]
    sizes = [p.numel() * (p.grad_dtype or p.dtype).itemsize for _, p in named]
    assigned = buckets.assign(sizes, buckets.caps(cap_mib), kinds) if named else []
    return [Bucket(dict(named[index] for index in indices), group) for indices in assigned], number


def _masters(dealt: list[Bucket], number: dict[nn.Parameter, int], groups: int) -> list[list[nn.Parameter]]:
    """This rank's masters by optimizer group; an optimizer wants at least one, if it is empty."""
    pieces = [piece for bucket in dealt for piece in bucket.pieces]
    mine = [[piece.master for piece in pieces if number[piece.parameter] == index] for index in range(groups)]
    return [masters or [nn.Parameter(torch.empty(0))] for masters in mine]
