"""What these tests share: a model of odd sizes, its serial twin, and gradients and weights made whole."""

from dataclasses import replace

import torch

from fivedim import train
from fivedim.comm import norm
from fivedim.data_parallel import mean
from fivedim.fsdp import FullySharded, checkpoint
from fivedim.model import GPT
from tests.data_parallel.cases import close
from tests.data_parallel.test_against_serial import SMALL, batch

SHAPE = replace(SMALL, layers=2)
WHOLE = 0.05  # the norm that gradients are clipped to: less than what they have here


def models(rank, shape=SHAPE):
    """A model of this rank's own weights, and position 0's."""
    return GPT(shape, seed=rank).double(), GPT(shape, seed=0).double()


def whole_gradients(sharded):
    """Every rank's shards' gradients, whole, by name."""
    held = {shard: shard.grad for unit in sharded.units for shard in unit.shards if shard.grad is not None}
    names = checkpoint.names(sharded)
    return {names[shard]: x for shard, x in checkpoint.gather(sharded, held).items()}


def same_as(sharded, twin, what):
    """Weights and gradients are the twin's."""
    wanted = twin.state_dict()
    for name, x in checkpoint.state_dict(sharded).items():
        close(x, wanted[name], f"{name} {what}")
    gradients = whole_gradients(sharded)
    for name, p in twin.named_parameters():
        close(gradients[name], p.grad, f"gradient of {name} {what}")


class Clipped:
    """An optimizer that clips the global norm first."""

    def __init__(self, optimizer, clip):
        self.optimizer, self.clip = optimizer, clip

    def zero_grad(self):
        """The optimizer's."""
        self.optimizer.zero_grad()

    def step(self):
        """Clip, then the optimizer's."""
        self.clip()
        self.optimizer.step()


def clip_sharded(sharded):
    """Clip by scalars alone."""
    norm.clip_({sharded.group: [p.grad for p in sharded.parameters() if p.grad is not None]}, WHOLE)


def clip_serial(twin):
    """torch's."""
    assert torch.nn.utils.clip_grad_norm_(twin.parameters(), WHOLE) > WHOLE


def steps(sharded, twin, make, group, count=3, replicas=None, clipped=False):
    """Steps on uneven batches of both; each time the losses are alike, and gradients and weights at the end."""
    optimizer, serial = make(sharded.parameters()), make(twin.parameters())
    if clipped:
        optimizer = Clipped(optimizer, lambda: clip_sharded(sharded))
        serial = Clipped(serial, lambda: clip_serial(twin))
    axes = [group] + ([replicas] if replicas else [])
    own_position = group.rank() + (replicas.rank() * group.size() if replicas else 0)
    ranks = group.size() * (replicas.size() if replicas else 1)
    for step in range(count):
        own = [batch(own_position, step)]
        valid = train.valid_tokens(own)
        for axis in axes:
            valid = mean(valid, axis)
        loss = train.step(sharded, optimizer, own, valid)
        for axis in axes:
            loss = mean(loss, axis)
        wanted = train.step(twin, serial, [batch(position, step) for position in range(ranks)])
        close(loss, wanted.double(), f"loss of step {step}")
    same_as(sharded, twin, "at the end")
    return optimizer, serial


def sharded_twin(group, **options):
    """Ours with this rank's own weights to begin with, a unit a block, and the twin with position 0's."""
    model, twin = models(group.rank())
    return FullySharded(model, group, model.blocks, **options), twin
