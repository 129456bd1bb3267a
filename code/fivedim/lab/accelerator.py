"""The virtual accelerator: real hooks, schedules and communication around kernels that take time and compute nothing.

A dispatch mode catches every operation that would compute. It charges the kernel to a virtual compute lane by the
roofline of the machine file's card, and returns tensors of the right shapes and dtypes whose contents nobody wrote: no
number that was made under it means anything, and reading one is refused. Views, and what depends on no tensor, are the
real ones. Communication is real.

The host runs ahead of the lane, as that of a GPU does, and its own overhead is absorbed. NCCL's stream waits for the
compute stream, while gloo sends as soon as it is called: so the host sleeps until the lane has done all that came
before a collective, launches it, and goes on; the lane never stopped. Where the host waits for a collective, the lane
waits with it. Sleeping is to deadlines, so that no error adds up.

Time dilation divides the card's rates; whoever builds the links divides theirs by as much. What is private to torch
stays in this file.
"""

import math
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work
from torch.utils._pytree import tree_iter, tree_map_only
from torch.utils.flop_counter import flop_registry, shape_wrapper

from fivedim.errors import FAILED, UserError
from fivedim.lab.meter import CPU_ATTENTION, Mode
from fivedim.ledger.kernels import Accelerator
from fivedim.ledger.simulator import COMMUNICATION, COMPUTE

aten = torch.ops.aten
SHORTEST = 1.0  # s of kernels in a step: below it the host's work and the scheduler's slices show
TOLERANCE = 0.05  # of a step's kernels: how far behind them the host may be when it launches a collective

FLOP = flop_registry | {packet: shape_wrapper(formula) for packet, formula in CPU_ATTENTION.items()}
KERNELS = {"aten", "prims"}  # namespaces; others hold bookkeeping, as the profiler's
METADATA = {aten._unsafe_view, aten.set_, aten.resize_}  # they move no data, though their schemas do not say `view`
OVERWRITES = {aten.copy_, aten.zero_, aten.fill_}  # what they write they do not read
GATHERS = {
    aten.embedding,
    aten.nll_loss_forward,
    aten.index_select,
    aten.gather,
}  # of the first they read what they return
READS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class TooShortError(UserError):
    """Steps so short that the host cannot keep up: a longer dilation, or a less busy machine, may do."""


class Span(NamedTuple):
    """When something ran on a lane, in seconds since the step began. A collective's name has its bytes behind it."""

    name: str
    lane: str
    start: float
    end: float


class Step(NamedTuple):
    """How long a step took, the sum of its kernels, and how far the host ever fell behind them. Seconds."""

    seconds: float
    busy: float
    late: float


class Layout(NamedTuple):
    """A tensor without its contents."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


class Kernel(NamedTuple):
    """An operation on arguments of certain layouts: its time, and what it returns.

    That is either arguments, by position and name, or new tensors, as a tree of layouts.
    """

    name: str
    seconds: float
    given: tuple[tuple[int, str], ...] | None
    made: Any


class VirtualAccelerator(Mode):
    """`with accelerator:` is one step of this rank; the block ends when the last kernel has. It sends nothing itself.

    Afterwards `trace` holds every kernel and collective of the step, and `steps` one entry more. `dilation` slows the
    card; it may be set between steps. `rates` renames dtypes for the rates of products ({"float32": "tf32"}). `reads`
    is the constant that reading a number returns; without one it is an error.
    """

    def __init__(
        self,
        card: Accelerator,
        dilation: float = 1.0,
        rates: dict[str, str] | None = None,
        reads: float | None = None,
    ):
        super().__init__()
        self.card, self.dilation, self.rates, self.reads = card, dilation, rates or {}, reads
        self.trace: list[Span] = []
        self.steps: list[Step] = []
        self._busy = self._late = self._began = self._end = 0.0
        self._kernels: dict[tuple, Kernel] = {}
        self._kinds: dict[Any, Callable] = {}
        self._flying: dict[Work, tuple[str, float]] = {}
        self._wait = Work.wait

    def __enter__(self):
        super().__enter__()
        self.trace, self._busy, self._late = [], 0.0, 0.0
        Work.wait = self._hook_of_wait()
        self._began = self._end = time.perf_counter()
        return self

    def __exit__(self, kind, *exception):
        Work.wait = self._wait
        super().__exit__(kind, *exception)
        if kind is None:
            self.synchronize()
            self.steps.append(Step(time.perf_counter() - self._began, self._busy, self._late))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing here is compiled, and the guard against it costs 20 us an operation

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Carry out what moves no data or is communication; charge the rest."""
        kind = self._kinds.get(func) or self._kinds.setdefault(func, self._kind(func))
        return kind(func, args, kwargs or {})

    @property
    def now(self) -> float:
        """Seconds since the step began until the lane will have done all that was issued so far."""
        return self._end - self._began

    def synchronize(self) -> None:
        """Sleep until the lane has done everything that was issued, as torch.cuda.synchronize."""
        ahead = self._end - time.perf_counter()
        if ahead > 0:
            time.sleep(ahead)
        else:
            self._late = max(self._late, -ahead)

    def check(self) -> None:
        """Raises TooShortError if the steps so far were too short, by their medians, for their times to count."""
        busy, late = (median(each) for each in list(zip(*self.steps, strict=True))[1:])
        if busy < SHORTEST:
            fault, times = "its work would show in them", SHORTEST / max(busy, 1e-9)
        elif late > TOLERANCE * busy:
            fault, times = f"it fell {late:.2g} s behind them", late / (TOLERANCE * busy)
        else:
            return
        raise TooShortError(
            f"the host is too slow for {busy:.2g} s of virtual kernels, {fault}: "
            f"use a dilation of at least {math.ceil(self.dilation * times)}, or a less busy machine",
            FAILED,
        )

    def _kind(self, func) -> Callable:
        """How an operation is carried out."""
        if func.namespace == "c10d":
            return self._communicate
        if func.namespace not in KERNELS or func.is_view or func.overloadpacket in METADATA:
            return _really
        if READS & set(func.tags):
            return self._read
        tensors = any("Tensor" in str(argument.type) for argument in func._schema.arguments)
        return self._compute if tensors else self._create

    def _compute(self, func, args, kwargs):
        key = (func, _signature(args), *((name, _signature(value)) for name, value in kwargs.items()))
        kernel = self._kernels.get(key)
        if kernel is None:
            kernel = self._kernels[key] = self._prepare(func, args, kwargs)
        self._charge(kernel.name, kernel.seconds)
        return _returned(kernel, args, kwargs)

    def _create(self, func, args, kwargs):
        out, name = func(*args, **kwargs), func.overloadpacket.__name__
        self._charge(name, 0.0 if name.startswith("empty") else self.card.stream(_size(out)))
        return out

    def _read(self, func, args, kwargs):
        name = func.overloadpacket.__name__
        if self.reads is None or torch.Tag.dynamic_output_shape in func.tags:
            raise UserError(
                f"{name} under the virtual accelerator: nothing is computed, so that no number can be read: "
                "read it after the step, or without the accelerator",
                FAILED,
            )
        self.synchronize()
        return type(self.reads)(self.reads)

    def _communicate(self, func, args, kwargs):
        """Launch it for real, once the lane has come as far as the host."""
        self.synchronize()
        name, start = f"{func.overloadpacket.__name__} {_size(args)}", time.perf_counter()
        out = func(*args, **kwargs)
        for each in out if isinstance(out, tuple) else (out,):
            if isinstance(each, torch.ScriptObject):
                self._follow(Work.unbox(each), name, start)
        return out

    def _follow(self, work: Work, name: str, start: float) -> None:
        """Note when it ends: by its future, or where it has none (a message) when the host has waited for it."""
        try:
            work.get_future().add_done_callback(lambda _: self._note(name, start))
        except RuntimeError:
            self._flying[work] = name, start

    def _note(self, name: str, start: float) -> None:
        self.trace.append(Span(name, COMMUNICATION, start - self._began, time.perf_counter() - self._began))

    def _hook_of_wait(self) -> Callable:
        def wait(work: Work, *args, **kwargs):
            self._late = max(self._late, time.perf_counter() - self._end)
            try:
                return self._wait(work, *args, **kwargs)
            finally:
                if work in self._flying:
                    self._note(*self._flying.pop(work))
                self._end = max(self._end, time.perf_counter())

        return wait

    def _charge(self, name: str, seconds: float) -> None:
        start, self._end = self._end, self._end + seconds * self.dilation
        self._busy += seconds * self.dilation
        self.trace.append(Span(name, COMPUTE, start - self._began, self._end - self._began))

    def _prepare(self, func, args, kwargs) -> Kernel:
        """Price an operation that is seen for the first time with such arguments; shapes come from the meta device."""
        name, schema = func.overloadpacket.__name__, func._schema
        if all(each.alias_info and each.alias_info.is_write for each in schema.returns):
            given = tuple(_place(schema, each) for each in schema.returns)
            return Kernel(name, self._seconds(func, args, kwargs, None), given, None)
        made = _on_meta(func, args, kwargs)
        return Kernel(name, self._seconds(func, args, kwargs, made), None, tree_map_only(Tensor, _layout, made))

    def _seconds(self, func, args, kwargs, made) -> float:
        """The kernel's roofline: FLOP by torch's formulas, and every tensor moved once each way."""
        packet = func.overloadpacket
        if packet is aten._fused_adamw_:
            return self.card.adamw(sum(parameter.numel() for parameter in args[0]))
        read, written = list(_tensors((args, kwargs))), list(_tensors((_mutated(func, args, kwargs), made)))
        if packet in OVERWRITES:
            read = read[1:]
        moved = _size(written) + (_size(made) + _size(read[1:]) if packet in GATHERS else _size(read))
        if packet not in FLOP:
            return self.card.stream(moved)
        dtype = _name(next(each.dtype for each in read if each.is_floating_point()))
        rate = self.rates.get(dtype, dtype)
        if rate not in self.card.gemm:
            raise UserError(f"products of {rate}: the card has no such rate; it has {', '.join(self.card.gemm)}")
        return self.card.kernel(FLOP[packet](*args, **kwargs, out_val=made), moved, rate)


def _really(func, args, kwargs):
    return func(*args, **kwargs)


def _signature(value: Any):
    """What an operation's result can depend on but the numbers in its tensors, as a key."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, (list, tuple)):
        return tuple([_signature(each) for each in value])
    return type(value), value


def _on_meta(func, args, kwargs):
    """What the operation returns, as tensors of the meta device, which have no contents."""
    args, kwargs = tree_map_only(Tensor, lambda x: x.to("meta") if x.ndim == 0 else _meta(x), (args, kwargs))
    return func(*args, **(kwargs | {"device": "meta"} if "device" in kwargs else kwargs))


def _meta(x: Tensor) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def _layout(x: Tensor) -> Layout:
    return Layout(x.shape, x.stride(), x.dtype)


def _made(layout: Any):
    """New tensors of these layouts; what is no tensor stays."""
    if isinstance(layout, Layout):
        return torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype)
    if isinstance(layout, (tuple, list)):
        return type(layout)(_made(each) for each in layout)
    return layout


def _returned(kernel: Kernel, args: tuple, kwargs: dict[str, Any]):
    if kernel.given is None:
        return _made(kernel.made)
    found = [args[index] if index < len(args) else kwargs[name] for index, name in kernel.given]
    return tuple(found) if len(found) > 1 else found[0] if found else None


def _place(schema, returned) -> tuple[int, str]:
    """The argument, by position and name, that is returned."""
    return next(
        (index, each.name)
        for index, each in enumerate(schema.arguments)
        if each.alias_info and each.alias_info.before_set == returned.alias_info.before_set
    )


def _mutated(func, args, kwargs) -> list:
    """The arguments that the operation writes into."""
    schema = func._schema.arguments
    return [
        args[index] if index < len(args) else kwargs.get(each.name)
        for index, each in enumerate(schema)
        if each.alias_info and each.alias_info.is_write
    ]


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (each for each in tree_iter(tree) if isinstance(each, Tensor))


def _size(tree: Any) -> int:
    """Bytes of the tensors in a tree; an expanded dim holds its one row."""
    return sum(
        x.itemsize * math.prod(size for size, stride in zip(x.shape, x.stride(), strict=True) if stride)
        for x in _tensors(tree)
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
