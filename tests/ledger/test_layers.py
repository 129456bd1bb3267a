"""A GPT's operations: their tensors are the model's, their FLOP the formulas'."""

import pytest
import torch

from fivedim.ledger import flop, gpt
from fivedim.ledger.layers import operations, tensors, work
from fivedim.model import GPT, named

SHAPES = [
    named("124M", fused_attention=False),
    named("tiny", tied=False, kv_heads=1, rope=True),
    named("tiny", bias=False),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_tensors_are_the_models_by_name_size_and_order(shape):
    with torch.device("meta"):
        model = GPT(shape)
    found = tensors(operations(shape, 8, 2))
    assert list(found.items()) == [(name, parameter.numel()) for name, parameter in model.named_parameters()]
    assert sum(found.values()) == gpt.parameters(shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_flop_add_up_to_the_formulas(shape):
    listed = operations(shape, 16, 3)
    assert sum(each.forward for each in listed) == sum(flop.forward(shape, 16, 3).values())
    assert work(listed) == sum(flop.forward(shape, 16, 3).values()) + sum(flop.backward(shape, 16, 3).values())
