"""Masters and compute weights: the step, the copy, what a load does to masters (B53), accumulation in fp32."""

import pytest
import torch

from fivedim.errors import UserError
from fivedim.optim import adamw, sgd
from fivedim.precision import MixedPrecision


def build(make=sgd, accumulate=None, rate=1.0, value=1.0, **options):
    layers = [torch.nn.Linear(5, 3), torch.nn.Linear(3, 1, bias=False)]
    model = torch.nn.Sequential(*layers)
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, value)
    return model, MixedPrecision(model.parameters(), lambda p: make(p, rate=rate, **options), accumulate=accumulate)


def fill(model, gradient):
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, gradient)


def test_small_updates_add_up_in_the_masters():
    model, optimizer = build(rate=2**-10)
    for _ in range(4):  # one such update alone is lost in bf16: 1 - 2^-10 rounds to 1
        fill(model, 1.0)
        optimizer.step()
    assert all(torch.equal(m, torch.full_like(m, 1 - 4 * 2**-10)) for m in optimizer.master)
    assert all(torch.equal(p, m.bfloat16()) for p, m in zip(model.parameters(), optimizer.master, strict=True))
    assert all((p < 1).all() for p in model.parameters())


def test_equals_the_optimizer_on_fp32_weights():
    model, optimizer = build(adamw, rate=0.01)
    twin = [torch.ones(p.shape) for p in model.parameters()]
    reference = torch.optim.AdamW(twin, lr=0.01)
    for step in range(5):
        fill(model, 0.5 - step / 8)
        for parameter, other in zip(model.parameters(), twin, strict=True):
            other.grad = parameter.grad.float()
        optimizer.step()
        reference.step()
    torch.testing.assert_close(optimizer.master, twin, rtol=1e-6, atol=1e-7)


def test_a_weight_without_gradient_is_left_alone():
    model, optimizer = build(adamw)
    model(torch.ones(2, 5, dtype=torch.bfloat16)).sum().backward()
    model[0].weight.grad = None
    optimizer.step()
    assert (model[0].weight == 1).all()
    assert (model[1].weight != 1).all()


@pytest.mark.parametrize(("accumulate", "kept"), [(None, 1.0), (torch.float32, 1.0 + 7 * 2**-9)])
def test_fp32_accumulation_keeps_what_bf16_loses(accumulate, kept):
    weight = torch.nn.Parameter(torch.zeros(3))
    MixedPrecision([weight], sgd, accumulate=accumulate)
    for factor in [1.0] + 7 * [2**-9]:
        (weight * factor).sum().backward()
    assert torch.equal(weight.grad.double(), torch.full((3,), kept, dtype=torch.float64))
    assert weight.grad.dtype == (accumulate or torch.bfloat16)


def test_B53_weights_loaded_into_the_model_replace_the_masters():  # noqa: N802
    model, optimizer = build(adamw, rate=1e-3, weight_decay=0.0)
    fill(model, 1.0)
    optimizer.step()
    model.load_state_dict({name: torch.full_like(p, 5.0) for name, p in model.state_dict().items()})
    fill(model, 1.0)
    optimizer.step()
    torch.testing.assert_close(optimizer.master, [torch.full_like(m, 5.0 - 1e-3) for m in optimizer.master])


def test_B53_in_place_changes_reach_the_masters_and_the_checkpoint():  # noqa: N802
    model, optimizer = build()
    with torch.no_grad():
        model[0].weight.mul_(3)
    assert (optimizer.state_dict()["master"][0] == 3).all()
    fill(model, 1.0)
    optimizer.step()
    assert (model[0].weight == 2).all()


def test_B53_resume_is_bit_identical():  # noqa: N802
    runs = []
    for interrupted in (False, True):
        model, optimizer = build(adamw, rate=0.01, value=0.7)
        for step in range(6):
            if interrupted and step == 3:
                saved = model.state_dict(), optimizer.state_dict()
                model, optimizer = build(adamw, rate=0.01, value=-1.0)
                model.load_state_dict(saved[0])
                optimizer.load_state_dict(saved[1])
            fill(model, 0.3 + step / 7)
            optimizer.step()
        runs.append([*optimizer.master, *model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_B53_a_checkpoint_without_masters_is_an_error():  # noqa: N802
    _, optimizer = build()
    with pytest.raises(UserError, match="no master for each weight"):
        optimizer.load_state_dict(optimizer.optimizer.state_dict())
