"""Articles 4's and 5's predicted steps: what they say, what they follow from, and that they can fail."""

import math

import pandas as pd
import pytest
import torch
from torch import nn

from fivedim.articles import a04_run as run
from fivedim.articles import a04_times as zero
from fivedim.articles import a05_times as fsdp
from fivedim.articles.a03_ddp import MEMORY, ONE_GPU
from fivedim.lab.accelerator import VirtualAccelerator
from fivedim.ledger.kernels import Accelerator
from fivedim.ledger.sensitivity import Range


@pytest.fixture
def no_ranges(monkeypatch):
    """The ranges are a search over the prediction, tested on its own: here only that they are asked for."""
    monkeypatch.setattr(
        "fivedim.ledger.sensitivity.verdict_ranges",
        lambda predict, constants, holds: {name: Range(*[holds(predict(constants))] * 2) for name in constants},
    )


@pytest.fixture
def zero_rows(no_ranges):
    return pd.DataFrame(zero.zero_times_predicted(zero.ZeroTimesPredictedConfig()))


@pytest.fixture
def fsdp_rows(no_ranges):
    return pd.DataFrame(fsdp.fsdp_times_predicted(fsdp.FsdpTimesPredictedConfig()))


def named(rows, row, key="name"):
    return rows[rows.row == row].set_index(key)


def test_compute_is_the_step_on_one_gpu_without_its_bf16_update():
    large = run.Run(run.LargeConfig())
    rates = large.rates()
    assert rates.parameters == 774_090_240
    assert rates.compute == pytest.approx(0.1529 - 14 * 774_090_240 / 1.792e12)
    assert large.mask_bytes == 36 * 2**20 * 4
    assert large.rates({ONE_GPU: 162.9}).compute - rates.compute == pytest.approx(0.01)
    assert large.rates({run.ALL_GATHER: 2.0}).collective("all_gather", 2**30) == pytest.approx(0.0493389 / 2)


def test_the_stages_are_near_the_reported_steps_and_in_their_order(zero_rows):
    stages = named(zero_rows, "stage", "stage")
    assert stages.error.abs().max() < 0.15
    assert zero.order(zero_rows) == 1
    assert list(stages.units[:3]) == [2, 3, 3]
    assert stages.units[3] == pytest.approx(2 + 256 / 774, abs=5e-3)  # 13 of 36 blocks are gathered twice
    whole = stages.compute_ms + stages.update_ms + stages.communication_ms - stages.hidden_ms
    assert list(whole) == pytest.approx(list(stages.predicted_ms))
    assert zero_rows[zero_rows.row == "range"].low.eq(1).all()


def test_an_order_that_is_reversed_anywhere_is_not_the_reported_one():
    assert zero.in_order([3, 2, 2, 1], [30, 20, 19, 10])
    assert not zero.in_order([3, 2, 1, 2.5], [30, 20, 19, 10])


def test_what_is_hidden_by_prefetch_is_most_of_the_third_stages_lead(zero_rows):
    variants, stages = named(zero_rows, "variant"), named(zero_rows, "stage", "stage")
    lead = named(zero_rows, "lead", "over")
    for over in (0, 2):
        parts = lead.loc[over, ["compute_ms", "update_ms", "communication_ms", "hidden_ms"]]
        assert parts.sum() == pytest.approx(stages.predicted_ms[over] - stages.predicted_ms[3])
    assert lead.prefetch_share.between(0.5, 1).all()
    assert variants.predicted_ms["stage 3, both"] > stages.predicted_ms[0]
    assert variants.units["stage 3, everything gathered twice"] == 3


def test_fsdps_steps_are_within_a_tenth_and_ddps_within_a_fifth(fsdp_rows):
    modes = named(fsdp_rows, "mode", "mode")
    assert modes.error[["fsdp2", "fsdp2-noreshard"]].abs().max() < 0.1
    assert abs(modes.error["ddp"]) < 0.2
    assert fsdp.order(fsdp_rows) == 1
    assert fsdp_rows[fsdp_rows.row == "range"].low.eq(1).all()


def test_resharding_costs_about_an_all_gather(fsdp_rows):
    quantities = named(fsdp_rows, "quantity").predicted_ms
    assert quantities["saved without resharding"] == pytest.approx(
        quantities["one all-gather of the bf16 model"], rel=0.1
    )
    (point,) = fsdp_rows[fsdp_rows.row == "break_even"].itertuples()
    assert point.gb_s == pytest.approx(point.times * point.now_gb_s)
    assert 1 < point.times < 10


def test_the_parts_of_the_lead_add_up_to_the_reported_one(fsdp_rows):
    parts = named(fsdp_rows, "part")
    assert parts.ms.sum() == pytest.approx(477.1 - 337.9)
    assert parts.ms["gradients and weights take less to send"] < 0  # they take longer
    assert parts.ms["activations are bf16"] > parts.ms["a shard is updated"] > parts.ms["more is hidden"] > 0


def test_a_memory_twice_as_fast_halves_the_updates():
    large = run.Run(run.LargeConfig())
    twice = {MEMORY: 2 * large.constants[MEMORY]}
    slow, fast = (fsdp.Modes.of(large, given).update for given in ({}, twice))
    assert fast == pytest.approx(slow / 2)


class Block(nn.Module):
    """What of the article's block autocast treats differently: norms, residuals, and the GELU with a power in it.

    `autocast` computes the power in fp32, as CUDA's does.
    """

    def __init__(self, width, autocast):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention, self.up, self.down = (nn.Linear(width * i, width * o) for i, o in ((1, 1), (1, 4), (4, 1)))
        self.autocast = autocast

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        hidden = self.up(self.norms[1](x))
        cube = torch.pow(hidden.float() if self.autocast else hidden, 3.0)
        gelu = 0.5 * hidden * (1.0 + torch.tanh(0.8 * (hidden + 0.04 * cube)))
        return x + self.down(gelu)


def moved(tokens, width, autocast):
    """Bytes that the kernels of the middle one of three blocks move, forward and backward."""
    card = Accelerator(gemm={"bfloat16": math.inf}, memory=1e9, multiprocessors=1, launch=0.0)
    dtype = torch.float32 if autocast else torch.bfloat16
    seconds = []
    for blocks in (2, 3):
        model = nn.Sequential(*(Block(width, autocast) for _ in range(blocks))).to(dtype)
        x = torch.zeros(tokens, width, dtype=dtype, requires_grad=True)
        with VirtualAccelerator(card) as accelerator:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                y = model(x)
            y.backward(torch.zeros_like(y))
            seconds.append(accelerator.now)
    return 1e9 * (seconds[1] - seconds[0])


def test_autocast_moves_as_many_more_bytes_of_activations_as_are_charged():
    """In tokens times width alone: what grows with the one or the other, as casts of weights do, is left out."""
    more = {(t, w): moved(t, w, True) - moved(t, w, False) for t in (8, 24) for w in (16, 32)}
    mixed = more[24, 32] - more[8, 32] - more[24, 16] + more[8, 16]
    assert mixed / (24 - 8) / (32 - 16) == pytest.approx(fsdp.FP32_ACTIVATIONS)
