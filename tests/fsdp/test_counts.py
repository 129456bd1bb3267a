"""What fully sharded training keeps and sends, rehearsed at N = 1, 2, 4, 8: bytes counted on storages and messages."""

import pytest
import torch

from fivedim import comm, train
from fivedim.fsdp import FullySharded, Policy, flat, rows
from fivedim.lab import rehearsal
from fivedim.lab.meter import Live
from fivedim.model import GPT, GPTConfig
from fivedim.optim import adamw

EVEN = GPTConfig(vocabulary=16, context=8, layers=3, heads=2, width=16)  # 8 divides every size
ODD = GPTConfig(vocabulary=11, context=5, layers=2, heads=2, width=14)


def step(shape, ranks, rank, **options):
    """One step of a rank: live bytes by kind after it, what was sent, and the number of parameters and tensors."""
    with rehearsal.rehearse(ranks, rank) as group, Live() as live:
        model = GPT(shape)
        count, tensors = sum(p.numel() for p in model.parameters()), len(list(model.parameters()))
        sharded = FullySharded(model, group, model.blocks, **options)
        optimizer = adamw(sharded.parameters())
        tokens = torch.zeros(2, 5, dtype=torch.long)
        live.label("data", [tokens])
        with comm.count() as traffic:
            train.step(sharded, optimizer, [(tokens, tokens)])
        for kind, held in optimizer.tensors().items():
            live.label(kind, held)
        return {kind: nbytes for (kind, _), nbytes in live.resident().items()}, traffic, count, tensors


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("layout", [rows, flat])
def test_16_bytes_a_parameter_over_the_ranks(ranks, layout):
    kept, _, count, tensors = step(EVEN, ranks, ranks - 1, layout=layout)
    assert kept.pop("step") == 4 * tensors
    assert kept.pop("data") == 2 * 5 * 8
    assert kept == dict.fromkeys(("parameters", "gradients", "exp_avg", "exp_avg_sq"), 4 * count // ranks)


@pytest.mark.parametrize("layout", [rows, flat])
def test_uneven_shards_add_up_to_16_bytes_a_parameter(layout):
    every = [step(ODD, 3, rank, layout=layout) for rank in range(3)]
    assert sum(sum(kept.values()) - kept["step"] - kept["data"] for kept, *_ in every) == 16 * every[0][2]


@pytest.mark.parametrize("layout", [rows, flat])
def test_three_units_with_reshard_and_two_without(layout):
    for reshard, units in ((True, 3), (False, 2)):
        _, traffic, count, _ = step(EVEN, 4, 1, layout=layout, reshard=reshard)
        assert traffic.bytes() == traffic.bytes(source="handed") == units * 3 / 4 * 4 * count
        assert traffic.calls(collective="all_gather") == 4 * (units - 1)


def test_a_policy_sends_bf16_parameters_and_fp32_gradients():
    policy = Policy(torch.bfloat16, torch.float32)
    kept, traffic, count, _ = step(EVEN, 8, 0, policy=policy)
    assert traffic.bytes(collective="all_gather", dtype="bfloat16") == 2 * 7 / 8 * 2 * count
    assert traffic.bytes(collective="reduce_scatter", dtype="float32") == 7 / 8 * 4 * count
    assert traffic.bytes() == 7 / 8 * 8 * count
    assert kept["parameters"] == kept["gradients"] == 4 * count / 8
