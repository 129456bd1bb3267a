"""Meters: live bytes by kind, resident and at the peak, and FLOP by module. They read real and fake tensors alike.

Both count on the rank that runs them and send nothing. Bytes are those of storages, each counted once: a tied weight, a
view or a tensor saved twice by autograd adds nothing.
"""

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count
from torch.utils.weak import WeakIdKeyDictionary

UNLABELLED = "activations"


class Mode(TorchDispatchMode):
    """A dispatch mode that does not keep torch.compile out of its own code: nothing here is compiled.

    To keep it out, torch would import its compiler at the first operation, for 6 s of processor time.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class Record:
    """One storage: its bytes, the dtype of its first tensor, its kind, and between which events it was alive."""

    def __init__(self, nbytes: int, dtype: str, born: int):
        self.nbytes, self.dtype, self.born = nbytes, dtype, born
        self.kind, self.died = UNLABELLED, None

    def alive(self, moment: int | None) -> bool:
        """Whether it was alive at `moment` (None: now)."""
        if moment is None:
            return self.died is None
        return self.born <= moment and (self.died is None or self.died > moment)


class Live(Mode):
    """Every storage that an operation makes while the mode is on, and every one that `label` names.

    A storage without label counts as an activation. Labels may come late: a gradient that is named after the backward
    pass is a gradient at the peak as well. A storage that is resized, as torch's FSDP frees and refills what it
    gathers, keeps its label. A tensor made of others (a DTensor) counts as those. One on the meta device has no memory,
    and counts where the default device is meta, in a rehearsal.
    """

    def __init__(self):
        super().__init__()
        self.records: list[Record] = []
        self.now = self.total = self.most = self.at = 0
        self._known = WeakIdKeyDictionary()

    def __enter__(self):
        resize = self._resize = UntypedStorage.resize_

        def seen(storage: UntypedStorage, nbytes: int) -> UntypedStorage:
            resize(storage, nbytes)
            self._resized(storage)
            return storage

        UntypedStorage.resize_ = seen  # it is no operation, so that no dispatch mode sees it
        self._rehearsed = torch.get_default_device().type == "meta"
        return super().__enter__()

    def __exit__(self, *exception):
        UntypedStorage.resize_ = self._resize
        return super().__exit__(*exception)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Carry the operation out and see what it returns."""
        out = func(*args, **(kwargs or {}))
        for tensor in self._with_memory(out):
            self._see(tensor)
        return out

    def label(self, kind: str, tensors: Iterable[Tensor]) -> None:
        """Say of what kind these tensors' storages are; the last label counts."""
        for tensor in self._with_memory(list(tensors)):
            for record in self._see(tensor):
                record.kind = kind

    def resident(self) -> Counter[tuple[str, str]]:
        """Bytes that are alive now, by (kind, dtype)."""
        return self._bytes(None)

    def peak(self) -> Counter[tuple[str, str]]:
        """Bytes that were alive when the total was largest, by (kind, dtype)."""
        return self._bytes(self.at)

    def _bytes(self, moment: int | None) -> Counter[tuple[str, str]]:
        found = Counter()
        for record in self.records:
            if record.alive(moment):
                found[record.kind, record.dtype] += record.nbytes
        return found

    def _with_memory(self, tree: Any) -> Iterator[Tensor]:
        return (tensor for tensor in plain(tree) if self._rehearsed or tensor.device.type != "meta")

    def _see(self, tensor: Tensor) -> list[Record]:
        """The records of a tensor's storage: one for each size that it has had, the last is alive."""
        storage = tensor.untyped_storage()
        if storage not in self._known:
            sizes = self._known[storage] = []
            weakref.finalize(storage, self._lose, sizes).atexit = False
            self._add(sizes, storage.nbytes(), named(tensor.dtype))
        return self._known[storage]

    def _add(self, sizes: list[Record], nbytes: int, dtype: str) -> None:
        self.now += 1
        sizes.append(Record(nbytes, dtype, self.now))
        self.records.append(sizes[-1])
        self.total += nbytes
        if self.total > self.most:
            self.most, self.at = self.total, self.now

    def _lose(self, sizes: list[Record]) -> None:
        self.now += 1
        sizes[-1].died = self.now
        self.total -= sizes[-1].nbytes

    def _resized(self, storage: UntypedStorage) -> None:
        if storage in self._known:
            sizes = self._known[storage]
            before = sizes[-1]
            self._lose(sizes)
            self._add(sizes, storage.nbytes(), before.dtype)
            sizes[-1].kind = before.kind


def by_kind(found: Counter[tuple[str, str]]) -> Counter[str]:
    """The same bytes by kind alone, whatever the dtype."""
    kinds = Counter()
    for (kind, _), nbytes in found.items():
        kinds[kind] += nbytes
    return kinds


def named(dtype: torch.dtype) -> str:
    """`float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


def plain(tree: Any) -> Iterator[Tensor]:
    """The tensors with a storage of their own in a tree: a DTensor's is its local tensor's."""
    for tensor in tree_iter(tree):
        if not isinstance(tensor, Tensor):
            continue
        if is_traceable_wrapper_subclass(tensor):
            names, _ = tensor.__tensor_flatten__()
            yield from plain([getattr(tensor, name) for name in names])
        else:
            yield tensor


# torch has formulas for the fused attention of GPUs but counts the CPU's as nothing. The fused backward computes the
# scores again: five products where the forward has two.
CPU_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda _, q, k, v, *__, **___: (
        sdpa_flop_count(q, k, v) * 5 // 2
    ),
}


class Flop:
    """FLOP of matrix products inside the block, by the name of the innermost module whose forward or backward did them.

    A multiply-add is 2 FLOP; what no module did goes by "". Read it after the forward pass and after the backward to
    tell the passes apart. The backward is attributed by the graph: a module owns the nodes between its
    outputs and inputs.
    """

    def __init__(self, root: nn.Module):
        self._root, self._hooks, self._stack = root, [], [""]
        self._counter = FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION)
        self._found, self._owner, self._seen = Counter(), "", 0

    def __enter__(self):
        self._counter.__enter__()
        for name, module in self._root.named_modules(prefix=type(self._root).__name__):
            self._hooks.append(module.register_forward_pre_hook(lambda module, args, name=name: self._enter(name)))
            self._hooks.append(module.register_forward_hook(self._leave))
        return self

    def __exit__(self, *exception):
        self._counter.__exit__(*exception)
        for hook in self._hooks:
            hook.remove()

    def by_module(self) -> Counter[str]:
        """FLOP so far. Names begin with the root's class: `GPT.blocks.0.mlp.up`."""
        self._switch(self._owner)
        return self._found.copy()

    def _switch(self, owner: str) -> None:
        total = self._counter.get_total_flops()
        self._found[self._owner] += total - self._seen
        self._owner, self._seen = owner, total

    def _enter(self, name: str) -> None:
        self._stack.append(name)
        self._switch(name)

    def _leave(self, module: nn.Module, args: tuple, output: Tensor) -> None:
        self._own(output, args, self._stack.pop())
        self._switch(self._stack[-1])

    def _own(self, output: Tensor, args: tuple, name: str) -> None:
        """Claim for `name` the graph's nodes from `output` back to `args`, but for those that a child has claimed."""
        done = {arg.grad_fn for arg in args if isinstance(arg, Tensor)} | {None}
        todo = [output.grad_fn]
        while todo:
            node = todo.pop()
            if node in done:
                continue
            done.add(node)
            todo += [source for source, _ in node.next_functions]
            if node.metadata.setdefault("flop", name) == name:
                node.register_prehook(lambda grads: self._switch(name))
                node.register_hook(lambda inputs, outputs: self._switch(""))


class Collectives(Mode):
    """c10d's operations while the mode is on: calls and bytes of the whole tensor, by c10d's name for the operation.

    It sees what any library sends, also from C++ and from autograd's hooks on the thread that runs the backward, and
    depends on no counter of ours. `typed` has the bytes by (name, dtype).
    """

    def __init__(self):
        super().__init__()
        self.calls, self.bytes, self.typed = Counter(), Counter(), Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Count the operation, if it is c10d's, and carry it out."""
        if func.namespace == "c10d":
            name = func.overloadpacket.__name__
            whole = max(([*plain(arg)] for arg in args[:2]), key=lambda tensors: sum(x.nbytes for x in tensors))
            self.calls[name] += 1
            for tensor in whole:  # the output of a gather, the input of a scatter
                self.bytes[name] += tensor.nbytes
                self.typed[name, named(tensor.dtype)] += tensor.nbytes
        return func(*args, **(kwargs or {}))
