"""Kernel times from rates."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from fivedim.ledger.kernels import FOREACH_ADAMW, FOREACH_ADAMW_BYTES, Accelerator

CARD = Accelerator(gemm={"bfloat16": 262e12}, memory=1792e9, multiprocessors=188, launch=5e-6)


def test_the_reference_product_runs_at_its_own_rate():
    assert CARD.product(8192, 8192, 8192, "bfloat16") == pytest.approx(2 * 8192**3 / 262e12)


def test_a_started_wave_costs_a_whole_one():
    fits, spills = (CARD.product(128 * 188, 128 * waves, 4096, "bfloat16") for waves in (1, 2))
    assert spills == pytest.approx(2 * fits)
    assert CARD.product(128 * 94, 128, 4096, "bfloat16") == pytest.approx(fits)  # half a wave takes as long


def test_adamw_reads_four_and_writes_three_fp32_numbers_a_parameter():
    assert CARD.adamw(10**6) == pytest.approx(28e6 / 1792e9)


class Moved(TorchDispatchMode):
    """The tensors of more than one element that every operation reads, and that it writes."""

    def __init__(self):
        super().__init__()
        self.counts = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        read = {x.data_ptr() for x in tree_iter(args) if isinstance(x, torch.Tensor) and x.numel() > 1}
        written = {x.data_ptr() for x in tree_iter(out) if isinstance(x, torch.Tensor) and x.numel() > 1}
        in_place = func.overloadpacket.__name__.endswith("_")
        if count := len(read) + (1 if in_place and read else len(written)):
            self.counts.append(count)
        return out


def test_torchs_default_adamw_is_as_many_passes_as_are_charged():
    weight = torch.zeros(7, requires_grad=True)
    weight.grad = torch.ones(7)
    optimizer = torch.optim.AdamW([weight], foreach=True)
    optimizer.step()  # the first also makes the state
    with torch.no_grad(), Moved() as moved:
        optimizer.step()
    assert moved.counts == list(FOREACH_ADAMW.values())
    assert FOREACH_ADAMW_BYTES == 80


def test_a_kernel_is_bound_by_products_or_by_memory():
    assert CARD.kernel(flop=262e12, size=0, dtype="bfloat16") == pytest.approx(1)
    assert CARD.kernel(flop=262e12, size=2 * 1792e9, dtype="bfloat16") == pytest.approx(2)
    assert CARD.kernel(flop=0, size=1792e9, dtype="int64") == pytest.approx(1)


def test_a_slowed_card_takes_longer_for_everything():
    slow = CARD.slowed(10, products=3)
    assert slow.kernel(262e12, 0, "bfloat16") == pytest.approx(30)
    assert (slow.stream(1792e9), slow.launch) == pytest.approx((10, 50e-6))
