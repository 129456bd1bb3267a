"""Our optimizers against torch's in fp64, over steps in which some parameters have no gradient."""

import pytest
import torch

from fivedim.errors import UserError
from fivedim.optim import adamw, sgd

SHAPES = [(7, 5), (3,), (), (2, 1, 4), (0, 3)]
PAIRS = {
    "adamw": (adamw, torch.optim.AdamW, {"weight_decay": 0.1, "betas": (0.8, 0.99), "eps": 1e-6}),
    "adamw without decay": (adamw, torch.optim.AdamW, {"weight_decay": 0.0}),
    "sgd": (sgd, torch.optim.SGD, {}),
    "sgd with momentum": (sgd, torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
}


def draw(seed):
    stream = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, dtype=torch.float64, generator=stream) for shape in SHAPES]


@pytest.mark.parametrize("name", PAIRS)
def test_five_steps_equal_torch(name):
    make, reference, options = PAIRS[name]
    ours, theirs = ([p.requires_grad_() for p in draw(0)] for _ in range(2))
    optimizers = make(ours, rate=0.03, **options), reference(theirs, lr=0.03, **options)
    for step in range(5):
        for index, gradient in enumerate(draw(step + 1)):
            missing = index == step % 3  # each of the first three sits out a step, so the counters differ
            ours[index].grad, theirs[index].grad = (None, None) if missing else (gradient, gradient.clone())
        kept = [p.detach().clone() for p in ours]
        for optimizer in optimizers:
            optimizer.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
        assert torch.equal(ours[step % 3], kept[step % 3])
        assert all(torch.equal(p.grad, g) for p, g in zip(ours, draw(step + 1), strict=True) if p.grad is not None)
    assert not torch.equal(ours[0], draw(0)[0])


def test_rate_may_change_and_gradients_are_forgotten():
    parameter = torch.ones(3, requires_grad=True)
    optimizer = sgd([parameter], rate=1.0)
    for rate, left in [(0.25, 0.75), (0.5, 0.25)]:
        optimizer.rate, parameter.grad = rate, torch.ones(3)
        optimizer.step()
        assert torch.equal(parameter, torch.full((3,), left))
    optimizer.zero_grad()
    assert parameter.grad is None


def test_state_names_its_tensors_and_resumes():
    runs = []
    for interrupted in (False, True):
        parameters = [p.requires_grad_() for p in draw(0)]
        optimizer = adamw(parameters)
        for step in range(4):
            if interrupted and step == 2:
                saved, optimizer = optimizer.state_dict(), adamw(parameters)
                optimizer.load_state_dict(saved)
            for parameter, gradient in zip(parameters, draw(step + 1), strict=True):
                parameter.grad = gradient
            optimizer.step()
        runs.append(parameters)
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    assert {kind: len(tensors) for kind, tensors in optimizer.tensors().items()} == dict.fromkeys(
        ("parameters", "gradients", "exp_avg", "exp_avg_sq", "step"), 5
    )
    with pytest.raises(UserError, match="another optimizer"):
        optimizer.load_state_dict(sgd(parameters).state_dict())
