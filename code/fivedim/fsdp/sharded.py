"""Fully sharded data parallelism: a model whose parameters are whole only while they are used.

There is no state to go wrong: a unit's parameters are a function of its shards, whose backward reduces their gradients;
what autograd saves of them is a note of where to gather them again; what nobody refers to is gone.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed import ProcessGroup
from torch.utils._pytree import tree_map

from fivedim import comm
from fivedim.comm.asynchronous import Pending
from fivedim.comm.backward import Synchronized
from fivedim.fsdp.layout import Layout, rows
from fivedim.fsdp.unit import Gathering, Unit, divide
from fivedim.fsdp.use import Saved, Use

Watch = Callable[[str, str, Sequence[Tensor]], None]


@dataclass(frozen=True)
class Policy:
    """Dtypes; None is the parameters' own.

    Parameters are gathered and used in `param`, gradients travel in `reduce` (None: the dtype in which they are used)
    and are summed in float32 at least; the model's result is turned to `output`. Shards, their gradients and the
    optimizer keep the model's dtype.
    """

    param: torch.dtype | None = None
    reduce: torch.dtype | None = None
    output: torch.dtype | None = None


AS_THEY_ARE = Policy()


class FullySharded(Synchronized, nn.Module):
    """`module` with its parameters cut over `group`; after a backward every shard's `.grad` is the mean over the ranks.

    `units` are the submodules whose parameters are gathered together, each while it runs. The rest, and what several
    units share, is one unit more, whole while the model runs. `parameters()` are the shards: train them with any
    elementwise optimizer. `layout` says how they are cut, `policy` in which dtypes they travel.

    `reshard`: True forgets a unit's parameters after its forward and gathers them again for its backward; False keeps
    them; a smaller group keeps them spread over it. `replicas`, the other axis of hybrid sharding, are the ranks that
    have the same shard. `prefetch` units are under way while one computes. `watch(event, unit, tensors)` hears of it.

    All ranks run the same units in the same order. A parameter that a rank did not use counts as zero. Activation
    checkpointing may wrap a unit. After an exception on all ranks the model can be used again.

    Sends for each unit: (N-1)/N * S of parameters before its forward, launched under the one before it; as much before
    its backward (within the smaller group, or not at all, by `reshard`); (N-1)/N * S of gradients after it, under the
    backward of the next; then, with `replicas`, an all-reduce of the shard. When made, all parameters and buffers.
    """

    def __init__(
        self,
        module: nn.Module,
        group: ProcessGroup,
        units: Iterable[nn.Module] = (),
        *,
        layout: Layout = rows,
        policy: Policy = AS_THEY_ARE,
        reshard: bool | ProcessGroup = True,
        replicas: ProcessGroup | None = None,
        prefetch: int = 1,
        watch: Watch = lambda event, unit, tensors: None,
    ):
        super().__init__()
        self.module, self.group, self.replicas, self.policy = module, group, replicas, policy
        self.reshard, self.prefetch, self.watch = reshard, prefetch, watch
        for axis in filter(None, (replicas, group)):
            for x in (*module.parameters(), *module.buffers()):
                comm.broadcast_(x, axis)
        self.units = [Unit(*found, group, layout) for found in divide(module, units)]
        for unit in self.units:
            if unit.module is not module:
                unit.module.register_forward_pre_hook(lambda *_, unit=unit: self._enter(unit))
                unit.module.register_forward_hook(lambda *_, unit=unit: self._leave(unit), always_call=True)
        self._order, self._entered = self.units, []  # the units of the last forward, and of this one so far
        self._uses: list[weakref.ref[Use]] = []  # of this forward
        self._whole: dict[int, tuple[torch.UntypedStorage, Use, int]] = {}  # parameters to save a note of, by storage
        self._coming: deque[tuple[Unit | Use, Gathering]] = deque()
        self._reductions: list[Iterator[None]] = []
        self._reducing = self._synchronized = False

    def forward(self, *args, **kwargs) -> Any:
        """What the module returns; its backward averages the gradients, unless this is inside `no_sync`."""
        if self._reducing or self._coming:
            self._forget()  # an exception cut the last backward short
        args, kwargs = cast((args, kwargs), self.policy.param)
        root = [unit for unit in self.units if unit.module is self.module]
        self._entered, self._uses = [], []
        try:
            with saved_tensors_hooks(self._save, self._restore):
                for unit in root:
                    self._enter(unit)
                output = self.module(*args, **kwargs)
        except BaseException:
            self._forget()
            raise
        finally:
            for unit in root:
                self._leave(unit)
        self._order = self._entered
        return cast(output, self.policy.output)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, those of `no_sync` too."""
        super().zero_grad(set_to_none)
        for unit in self.units:
            unit.unreduced = None

    def _enter(self, unit: Unit) -> None:
        """Before a unit's forward: make its parameters whole."""
        use, done = Use(unit, self._uses, self._synchronizes), len(self._entered)
        foreseen = self._order[:done] == self._entered and self._order[done : done + 1] == [unit]
        self._entered.append(unit)
        whole = self._take(unit, self._order[done + 1 :] if foreseen else ())
        parameters = unit.unpack(whole)
        if isinstance(self.reshard, ProcessGroup):
            use.keep(whole, self.reshard)
        if self.reshard:
            for index, storage in enumerate(x.untyped_storage() for x in parameters):
                self._whole[id(storage)] = storage, use, index
        unit.show(_Parameters.apply(self, use, parameters, *unit.shards))
        self.watch("forward", unit.name, parameters)

    def _leave(self, unit: Unit) -> None:
        """After a unit's forward: put its shards back."""
        unit.show(unit.shards)
        self._whole = {key: known for key, known in self._whole.items() if known[1].unit is not unit}
        self.watch("reshard" if self.reshard else "leave", unit.name, unit.shards)

    def _save(self, x: Tensor) -> Tensor | Saved:
        """What autograd keeps of a tensor that a backward needs."""
        if known := self._whole.get(id(x.untyped_storage())):
            _, use, index = known
            use.needed = True
            return Saved(use, index, x.size(), x.stride(), x.storage_offset())
        return x.detach()  # x itself may be what the node that saves it makes: they would keep each other alive

    @torch.no_grad()
    def _restore(self, saved: Tensor | Saved) -> Tensor:
        """The tensor once more; a use's first one waits until its parameters are whole."""
        if isinstance(saved, Tensor):
            return saved
        use = saved.use
        if use.parameters is None:
            use.parameters = use.unit.unpack(self._take(use, use.following()))
            self.watch("backward", use.unit.name, use.parameters)
        return use.parameters[saved.index].as_strided(saved.size, saved.stride, saved.offset)

    def _take(self, what: Unit | Use, following: Iterable[Unit | Use]) -> Tensor:
        """Launch what is used next, leave this rank to its work, and wait for what is used now."""
        if not self._coming or self._coming[0][0] is not what:
            self._discard()  # not what was foreseen
            self._launch(what)
        _, gathering = self._coming.popleft()
        under_way = [other for other, _ in self._coming]
        for other in following:
            if len(self._coming) >= self.prefetch:
                break
            if other not in under_way:
                self._launch(other)
        return gathering.wait()

    def _launch(self, what: Unit | Use) -> None:
        """Start to gather for a forward, of a unit, or a backward, of a use."""
        unit = what if isinstance(what, Unit) else what.unit
        dtype = self.policy.param or unit.dtype
        gathering = unit.gather(unit.shards, dtype) if what is unit else what.gather(dtype)
        self._coming.append((what, gathering))
        self.watch("gather", unit.name, [gathering.whole])

    def _discard(self) -> None:
        """Wait for what is under way, since others have sent it, and drop it."""
        while self._coming:
            self._coming.popleft()[1].wait()

    def _backward(self, use: Use, gradients: list[Tensor | None]) -> None:
        """A unit's backward is over: drop its parameters, reduce its gradients."""
        use.end()
        if not self._reducing:
            self._reducing = True
            Variable._execution_engine.queue_callback(self._finish)
        if use.synchronizes:
            self._synchronized = True
            self._reduce(use.unit, gradients)
        else:
            use.unit.keep(gradients, self._reduce_dtype(use.unit))

    def _reduce(self, unit: Unit, gradients: list[Tensor | None]) -> None:
        """Launch the reduction of a unit's gradients, once those before it have gone on."""
        self._reductions = going_on(self._reductions)
        if unit.unreduced:
            unit.keep(gradients, self._reduce_dtype(unit))
            gradients, unit.unreduced = unit.unreduced, None
        reduction = self._reduction(unit, gradients)
        self._reductions += going_on([reduction])

    def _reduction(self, unit: Unit, gradients: list[Tensor | None]) -> Iterator[None]:
        """Launch, leave this rank to its work, wait; once more over the replicas; then the shards have gradients."""
        own, pending = unit.reduce(gradients, self._reduce_dtype(unit))
        self.watch("reduce", unit.name, [own, *(x for x in gradients if x is not None)])
        del gradients
        yield from until_here(pending)
        own.div_(self.group.size() * (self.replicas.size() if self.replicas else 1))
        if self.replicas:
            yield from until_here(comm.asynchronous.all_reduce_(own, self.replicas))
        unit.accumulate(own)
        self.watch("reduced", unit.name, [own])

    def _reduce_dtype(self, unit: Unit) -> torch.dtype:
        return self.policy.reduce or self.policy.param or unit.dtype

    def _finish(self) -> None:
        """The backward is over: reduce what only unsynchronized ones used, and wait for everything."""
        for unit in self.units if self._synchronized else ():
            if unit.unreduced:
                self._reduce(unit, [None] * len(unit.shards))
        while self._reductions:
            self._reductions = going_on(self._reductions)
        self._discard()
        self._reducing = self._synchronized = False

    def _forget(self) -> None:
        """After an exception: nothing is under way, and no gradient of its step is left here."""
        for reduction in self._reductions:
            reduction.close()
        self._discard()
        self._reductions, self._whole = [], {}
        self._reducing = self._synchronized = False
        for unit in self.units:
            unit.unreduced = None


class _Parameters(torch.autograd.Function):
    """A use's parameters as a function of its unit's shards. Its backward gets all their gradients at once."""

    @staticmethod
    def forward(ctx, owner: FullySharded, use: Use, parameters: list[Tensor], *shards: Tensor):
        ctx.set_materialize_grads(False)
        ctx.owner, ctx.use = owner, use
        ctx.mark_non_differentiable(
            *(x for x, shard in zip(parameters, shards, strict=True) if not shard.requires_grad)
        )
        return tuple(parameters)

    @staticmethod
    def backward(ctx, *gradients: Tensor | None):
        ctx.owner._backward(ctx.use, list(gradients))
        return (None, None, None, *(None for _ in gradients))


def until_here(pending: Pending) -> Iterator[None]:
    """Leave the rank to its work, then wait; also when given up, since others have sent."""
    try:
        yield
    finally:
        pending.wait()


def going_on(reductions: list[Iterator[None]]) -> list[Iterator[None]]:
    """Take each one step further; those that are not at their end."""
    return [each for each in reductions if next(each, reductions) is not reductions]


def cast(tree: Any, dtype: torch.dtype | None) -> Any:
    """Every floating-point tensor of a tree in `dtype`, if that is given."""
    if dtype is None:
        return tree
    return tree_map(lambda x: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x, tree)
