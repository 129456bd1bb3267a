"""The ledger's counts of parameters and FLOP against numbers that others published and against hand counts."""

import itertools

import pytest

from fivedim.ledger import flop, gpt, memory
from fivedim.model import GPT, GPTConfig, named


@pytest.mark.parametrize(
    ("name", "vocabulary", "count"),
    [("124M", 50257, 124_439_808), ("124M", 50304, 124_475_904), ("774M", 50304, 774_090_240)],
)
def test_published_parameter_counts(name, vocabulary, count):
    assert gpt.parameters(named(name, vocabulary=vocabulary)) == count


@pytest.mark.parametrize("options", list(itertools.product([True, False], repeat=3)))
@pytest.mark.parametrize("kv_heads", [None, 3, 1])
def test_parameters_are_the_models(options, kv_heads):
    options = dict(zip(("tied", "rope", "bias"), options, strict=True))
    config = GPTConfig(vocabulary=17, context=13, layers=3, heads=6, width=24, kv_heads=kv_heads, **options)
    model = GPT(config)
    assert gpt.parameters(config) == sum(p.numel() for p in model.parameters())
    assert gpt.idle(config)["norms"] == sum(p.numel() for name, p in model.named_parameters() if "norm" in name)


def test_state_by_kind():
    assert sum(memory.state(1000).values()) == 16_000
    assert sum(memory.state(1000, gradient_bytes=4).values()) == 18_000
    assert memory.checkpoint(7 * 10**9) == 14 * memory.GB
    assert memory.step_counters(148) == 592


def test_flop_of_a_layer_by_hand():
    config = GPTConfig(vocabulary=11, context=9, layers=1, heads=2, width=4, fused_attention=False)
    terms = flop.forward(config, length=3, sequences=5)
    per_token = {"attention.qkv": 2 * 4 * 12, "attention.out": 2 * 4 * 4, "mlp.up": 2 * 4 * 16, "mlp.out": 2 * 16 * 4}
    per_token |= {"head": 2 * 4 * 11, "attention.core": 2 * (2 * 2 * 3) * 2}  # 2 heads, width 2, 3 keys, 2 products
    assert terms == {term: 15 * count for term, count in per_token.items()}
    assert flop.backward(config, 3, 5) == {term: 2 * count for term, count in terms.items()}


@pytest.mark.parametrize("options", [{}, {"tied": False}, {"fused_attention": False, "rope": True, "bias": False}])
def test_the_remainder_is_the_whole_difference(options):
    config = named("124M", **options)
    counted = sum(flop.forward(config, 100, 3).values()) + sum(flop.backward(config, 100, 3).values())
    estimate = flop.training(gpt.parameters(config), 300)
    assert counted - estimate == sum(flop.remainder(config, 100, 3).values()) != 0


def test_the_articles_bill():
    total = flop.training(7e9, 1e12)
    assert total == pytest.approx(4.2e22)
    assert flop.years(total, 2e14, 365) == pytest.approx(6.659, abs=5e-4)
    assert flop.years(total, 2e14, 365.25) == pytest.approx(6.6545, abs=5e-4)


def test_state_by_stage_of_zero():
    for ranks in (1, 2, 4, 8, 64):
        each = [sum(memory.zero(1000, stage, ranks).values()) for stage in range(4)]
        assert each == [16_000, 4_000 + 12_000 / ranks, 2_000 + 14_000 / ranks, 16_000 / ranks]
        assert sum(memory.fully_sharded(1000, ranks).values()) == 16_000 / ranks
