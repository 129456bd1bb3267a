"""One step equals the gradient of the mean over all valid tokens (B15), and training is a function of its config."""

import math

import pytest
import torch
from torch.nn import functional as F

from fivedim import train
from fivedim.errors import UserError
from fivedim.model import GPT, GPTConfig
from fivedim.optim import sgd

SMALL = GPTConfig(vocabulary=11, context=8, layers=2, heads=2, width=12)


def batches(valid, seed=0):
    """One microbatch for each entry: so many of its 8 targets are valid."""
    stream = torch.Generator().manual_seed(seed)
    for count in valid:
        tokens, targets = torch.randint(11, (2, 2, 4), generator=stream)
        targets.view(-1)[count:] = train.IGNORE
        yield tokens, targets


@pytest.mark.parametrize("valid", [(1, 7, 3, 0), (0, 8), (5,)])
def test_B15_every_valid_token_weighs_the_same(valid):  # noqa: N802
    model, twin = (GPT(SMALL).double() for _ in range(2))
    microbatches = list(batches(valid))
    loss = train.step(model, sgd(model.parameters(), rate=0.5), microbatches)
    tokens, targets = (torch.cat(parts) for parts in zip(*microbatches, strict=True))
    expected = F.cross_entropy(twin(tokens).flatten(0, 1), targets.flatten())
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-10)
    assert loss.grad_fn is None
    for (name, ours), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-10, msg=name)
        torch.testing.assert_close(ours, theirs - 0.5 * theirs.grad, rtol=1e-10, atol=1e-10)


def test_B15_a_step_without_targets_changes_nothing():  # noqa: N802
    model = GPT(SMALL)
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert train.step(model, sgd(model.parameters()), list(batches((0, 0)))).item() == 0
    assert all(torch.equal(kept[name], tensor) for name, tensor in model.state_dict().items())


def test_gradients_do_not_carry_over():
    model = GPT(SMALL)
    optimizer = sgd(model.parameters(), rate=0.0)
    microbatches = list(batches((8, 8)))
    for _ in range(2):
        train.step(model, optimizer, microbatches)
    twice = [p.grad for p in model.parameters()]
    train.step(model, optimizer, microbatches)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), twice, strict=True))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-accumulate-fp32"])
def test_training_is_a_function_of_its_config_and_learns(precision):
    config = train.TrainConfig(steps=25, precision=precision, rate=1e-2, microbatches=2, batch=4)
    losses = list(train.main(config))
    assert losses[0] == pytest.approx(math.log(256), abs=0.2)
    assert losses[-1] < math.log(64) - 0.05  # less than the entropy of the symbols alone: it has seen the order
    assert list(train.main(config.model_copy(update={"steps": 3}))) == losses[:3]
    assert list(train.main(config.model_copy(update={"steps": 1, "seed": 1}))) != losses[:1]


def test_training_on_a_text(tmp_path):
    path = tmp_path / "text"
    path.write_text("to be or not to be " * 20)
    losses = list(train.main(train.TrainConfig(text=path, steps=10, length=16)))
    assert losses[-1] < losses[0]
    with pytest.raises(UserError, match="380 tokens do not fill a sequence of 400"):
        next(train.main(train.TrainConfig(text=path, length=400)))
    with pytest.raises(UserError, match="No such file"):
        next(train.main(train.TrainConfig(text=tmp_path / "none")))
