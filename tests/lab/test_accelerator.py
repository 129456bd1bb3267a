"""The virtual accelerator: time by the ledger, layouts of the real operations, communication that is real."""

import contextlib
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from fivedim.errors import UserError
from fivedim.lab import ranks
from fivedim.lab.accelerator import VirtualAccelerator
from fivedim.ledger.kernels import Accelerator
from fivedim.model import GPT, cross_entropy, named

CARD = Accelerator(gemm={"float32": 1e12, "bfloat16": 4e12, "tf32": 2e12}, memory=1e10, multiprocessors=1, launch=0.0)
SUM_OF_EIGHT = sum(range(8))


class Layouts(TorchDispatchMode):
    """Every kernel and view, and the layouts of what it returns."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.namespace == "aten" and func is not torch.ops.aten._local_scalar_dense.default:
            self.seen.append((str(func), tree_map_only(torch.Tensor, layout, out)))
        return out


def layout(x: torch.Tensor) -> tuple:
    return tuple(x.shape), x.stride(), x.dtype


def trained(mode, model: nn.Module, options: dict) -> list:
    """What two steps of training do, seen from inside `mode`."""
    x = torch.zeros(3, 5, dtype=torch.long if isinstance(model, GPT) else torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    with mode, Layouts() as layouts:
        for _ in range(2):
            optimizer.zero_grad()
            out = model(x)
            cross_entropy(out, torch.zeros(out.shape[:-1], dtype=torch.long))[0].backward()
            optimizer.step()
    return layouts.seen


UNFUSED = {"fused_attention": False, "fused_gelu": False, "mask_buffers": True}
MODELS = [
    (lambda: GPT(named("tiny", **UNFUSED)), {"fused": True}),
    (lambda: GPT(named("tiny", kv_heads=2, rope=True, tied=False, dropout=0.5)), {"foreach": True}),
    (lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).bfloat16(), {"foreach": True}),
]


@pytest.mark.parametrize(("model", "options"), MODELS, ids=["unfused", "rope", "bfloat16"])
def test_a_training_step_has_the_real_layouts(model, options):
    virtual = VirtualAccelerator(CARD.slowed(1e-3), reads=1.0)
    real = trained(contextlib.nullcontext(), model(), options)
    assert trained(virtual, model(), options) == real
    assert len(real) > 60
    assert virtual.steps[-1].busy > 0


def times(accelerator: VirtualAccelerator) -> list[tuple[str, float]]:
    return [(span.name, pytest.approx(span.end - span.start, rel=1e-6, abs=1e-11)) for span in accelerator.trace]


def test_kernels_take_what_the_ledger_says():
    x, w, half = torch.ones(30, 500), torch.ones(500, 700), torch.ones(64, 64, dtype=torch.bfloat16)
    parameter = nn.Parameter(torch.ones(11, 7))
    parameter.grad = torch.ones(11, 7)
    optimizer = torch.optim.AdamW([parameter], fused=True)
    optimizer.step()  # makes its state
    table, row = torch.ones(10**6, 4), torch.tensor([3, 5])
    with VirtualAccelerator(CARD, dilation=3) as accelerator:
        x @ w
        half @ half
        x.add_(1)
        x.t().contiguous()
        x[:1].expand(30, 500) + x
        w.copy_(w[:1].expand(500, 700))
        torch.nn.functional.embedding(row, table)
        torch.zeros(50)
        x.sum(dim=0)
        optimizer.step()
    moved = {"add_": 2 * 60000, "clone": 2 * 60000, "add": 2000 + 2 * 60000, "copy_": 2800 + 1400000}
    moved |= {"embedding": 2 * 32 + 16, "zeros": 200, "sum": 60000 + 2000, "_foreach_add_": 2 * 4}
    expected = [
        ("mm", 3 * max(2 * 30 * 500 * 700 / 1e12, 4 * (30 * 500 + 500 * 700 + 30 * 700) / 1e10)),
        ("mm", 3 * max(2 * 64**3 / 4e12, 2 * 3 * 64**2 / 1e10)),
        *((name, 3 * size / 1e10) for name, size in moved.items()),
        ("_fused_adamw_", 3 * CARD.adamw(77)),
    ]
    assert times(accelerator) == expected
    assert accelerator.steps[-1].busy == pytest.approx(sum(seconds for _, seconds in expected))


def test_products_can_run_at_another_dtypes_rate():
    x = torch.ones(2000, 2000)
    seconds = []
    for rates in (None, {"float32": "tf32"}):
        with VirtualAccelerator(CARD, rates=rates) as accelerator:
            torch.mm(x, x)
        seconds.append(accelerator.steps[-1].busy)
    assert seconds == pytest.approx([2 * 2000**3 / 1e12, 2 * 2000**3 / 2e12])
    with pytest.raises(UserError, match="products of float64: the card has no such rate; it has float32"), accelerator:
        torch.mm(x.double(), x.double())


def test_numbers_cannot_be_read():
    x = torch.ones(3)
    for read in (lambda: x.sum().item(), lambda: bool((x == 1).all()), lambda: x.nonzero(), lambda: x[x > 0]):
        with pytest.raises(UserError, match="nothing is computed"), VirtualAccelerator(CARD):
            read()
    with VirtualAccelerator(CARD, reads=2.5):
        assert x.sum().item() == 2.5


def test_contents_are_not_computed_and_views_are_real():
    x = torch.ones(4)
    with VirtualAccelerator(CARD):
        x.mul_(3)
        assert x[1:].data_ptr() == x.data_ptr() + 4
        assert torch.arange(3).tolist() == [0, 1, 2]
    assert x.tolist() == [1, 1, 1, 1]


def test_sleeping_to_deadlines_accumulates_no_drift():
    x = torch.ones(125000)  # a millisecond each way at half of the memory's rate
    with VirtualAccelerator(CARD, dilation=10) as accelerator:
        for _ in range(400):
            x.add_(1)
            accelerator.synchronize()
    assert accelerator.steps[-1].busy == pytest.approx(400 * 1e-3)
    assert accelerator.steps[-1].seconds == pytest.approx(accelerator.steps[-1].busy, rel=0.03)


def test_too_short_a_dilation_is_refused():
    x = torch.ones(125000)

    def steps(dilation: float, *pauses: float) -> VirtualAccelerator:
        accelerator = VirtualAccelerator(CARD, dilation)
        for pause in pauses:
            with accelerator:
                x.add_(1)
                time.sleep(pause)
        return accelerator

    with pytest.raises(UserError, match="0.001 s of virtual kernels, its work would show.*at least 10000,"):
        steps(10, 0).check()
    with pytest.raises(UserError, match=r"1 s of virtual kernels, it fell 0.\d+ s behind.*at least [2-9]\d\d\d\d,"):
        steps(10**4, 1.1).check()
    steps(10**4, 0).check()


def on_eight_ranks(accelerator: VirtualAccelerator, step: Callable) -> dict:
    return {"compute": compute_only(accelerator, step), "lanes": lanes()}


def training(layers: int = 60) -> tuple[VirtualAccelerator, Callable]:
    """A step, and the accelerator that has priced its kernels: before the ranks are forked, so that they need not."""
    model, x = nn.Sequential(*[nn.Linear(200, 200) for _ in range(layers)]), torch.zeros(1000, 200)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step():
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    accelerator = VirtualAccelerator(CARD, dilation=25)
    with accelerator:
        step()
    return accelerator, step


def compute_only(accelerator: VirtualAccelerator, step: Callable) -> list[float]:
    """How much longer than its kernels each of three steps took, as a share."""
    errors = []
    for _ in range(3):
        dist.barrier()
        with accelerator:
            step()
        errors.append(accelerator.steps[-1].seconds / accelerator.steps[-1].busy - 1)
    assert accelerator.steps[-1].busy > 1
    return errors


def lanes() -> tuple[list, float]:
    """10 ms, an all-reduce under 400 ms more, then its wait, and 50 ms: the trace, and the sum that was received."""
    x, scratch = torch.full((5,), float(dist.get_rank())), torch.ones(12500)
    dist.barrier()
    with VirtualAccelerator(CARD, dilation=1000) as accelerator:
        scratch.add_(1)
        work = dist.all_reduce(x, async_op=True)
        for _ in range(40):
            scratch.add_(1)
        work.wait()
        dist.barrier()
        scratch.add_(1)
    return accelerator.trace, x[0].item()


@pytest.fixture(scope="module")
def eight() -> list[dict]:
    return ranks.run(on_eight_ranks, 8, *training())


def test_a_step_of_a_second_takes_the_sum_of_its_kernels(eight):
    """Of three steps one, since other work on this machine may disturb some."""
    assert min(max(map(abs, step)) for step in zip(*(found["compute"] for found in eight), strict=True)) < 0.03


def test_communication_is_real_and_waits_for_the_kernels_before_it(eight):
    for found in eight:
        trace, total = found["lanes"]
        assert total == SUM_OF_EIGHT
        reduce, barrier = sorted((span for span in trace if span.lane == "communication"), key=lambda each: each.start)
        assert (reduce.name, barrier.name.split()[0]) == ("allreduce_ 20", "barrier")
        kernels = [span for span in trace if span.lane == "compute"]
        assert reduce.start >= kernels[0].end
        assert [after.start for after in kernels[1:-1]] == [before.end for before in kernels[:-2]]
        assert barrier.start >= kernels[-2].end
        assert kernels[-1].start >= barrier.end - 1e-3  # the lane waited with the host
