"""Stages 1 and 2 take the steps of one process on the whole batch, in float64, in groups of 1, 2, 3 and 4 ranks."""

from functools import partial

import torch
import torch._dynamo  # noqa: F401  every optimizer of torch's imports it: once here, not on every rank
import torch.distributed as dist

from fivedim import comm, mesh, train
from fivedim.data_parallel import mean
from fivedim.lab import ranks
from fivedim.model import GPT, GPTConfig
from fivedim.zero import Stage1, Stage2, consolidate
from tests.data_parallel.cases import close

SMALL = GPTConfig(vocabulary=11, context=8, layers=1, heads=2, width=14)  # its embedding is tied; 14 x 3 divides by few
OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.5, momentum=0.9),
    "plain sgd": partial(torch.optim.SGD, lr=1.0),
    "adamw": partial(torch.optim.AdamW, lr=1e-2),
}
CASES = [
    (Stage1, "sgd", None, 0.003),
    (Stage1, "adamw", 0.1, None),
    (Stage2, "sgd", 0.1, None),
    (Stage2, "adamw", None, 0.003),
    (Stage2, "plain sgd", None, 0.01),
]


def batch(position, step):
    """A rank's own tokens and targets [B, 5]; ranks have batches of different sizes."""
    stream = torch.Generator().manual_seed(10 * step + position)
    return tuple(torch.randint(11, (2, (3, 1, 2, 5)[position], 5), generator=stream))


def groups(model):
    """Weight decay for the matrices alone, as is usual; the rest is in a group of its own."""
    matrices, vectors = ([p for p in model.parameters() if (p.ndim > 1) == wide] for wide in (True, False))
    return [{"params": matrices, "weight_decay": 0.3}, {"params": vectors, "weight_decay": 0.0}]


class Clipped:
    """A torch optimizer in one process that clips first."""

    def __init__(self, model, optimizer, max_norm):
        self.model, self.optimizer, self.max_norm = model, optimizer, max_norm
        self.zero_grad = optimizer.zero_grad

    def step(self):
        if self.max_norm:
            self.norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        self.optimizer.step()


class ClippedHere(Clipped):
    def step(self):
        if self.max_norm:
            self.norm = self.optimizer.clip_(self.max_norm)
        self.optimizer.step()


def same_everywhere(model, group):
    """Bit-identical on all ranks: the largest of every element is the smallest, too."""
    weights = torch.cat([x.flatten() for x in model.parameters()]).detach()
    assert torch.equal(comm.all_reduce_max(weights, group), -comm.all_reduce_max(-weights, group))


def against_twin(group, stage, name, max_norm, cap):
    """Three steps of ours, begun with weights of this rank's own, and of rank 0's weights on everybody's batches."""
    model, twin = GPT(SMALL, seed=group.rank()).double(), GPT(SMALL, seed=0).double()
    started = [x.clone() for x in twin.parameters()]
    make = OPTIMIZERS[name]
    ours = ClippedHere(model, stage(model, group, make, groups(model), cap), max_norm)
    serial = Clipped(twin, make(groups(twin)), max_norm)
    for step in range(3):
        own = [batch(group.rank(), step)]
        loss = train.step(model, ours, own, mean(train.valid_tokens(own), group))
        wanted = train.step(twin, serial, [batch(position, step) for position in range(group.size())])
        close(comm.all_reduce(loss, group) / group.size(), wanted, "loss", 1e-6)
        if max_norm:
            close(ours.norm, serial.norm.double(), "norm")
        for (what, a), b in zip(model.named_parameters(), twin.parameters(), strict=True):
            close(a, b, f"{stage.__name__}, {name}, N = {group.size()}: {what} after step {step}")
    assert all((x - y).abs().max() > 1e-6 for x, y in zip(model.parameters(), started, strict=True))
    same_everywhere(model, group)
    check_state(ours.optimizer, serial.optimizer, twin, group)


def check_state(ours, serial, twin, group):
    """Joined, every rank's part is the state of one process, the tied weight's once."""
    parts = [None] * group.size()
    dist.all_gather_object(parts, ours.state_dict(), group=group)
    whole = consolidate(parts)
    assert whole["model"].keys() == dict(twin.named_parameters()).keys()
    for name, parameter in twin.named_parameters():
        close(whole["model"][name], parameter.detach(), name)
        state = {key: x for key, x in serial.state[parameter].items() if x is not None}
        assert {key for key, x in whole["optimizer"][name].items() if x is not None} == state.keys()
        for key, x in state.items():
            close(whole["optimizer"][name][key], x, f"{key} of {name}")
    elements = sum(piece.master.numel() for bucket in ours.buckets for piece in bucket.pieces)
    assert abs(elements - sum(p.numel() for p in twin.parameters()) / group.size()) <= len(ours.buckets)


def all_groups():
    for size in (1, 2, 3, 4):
        group = mesh.subgroups([list(range(size))], "dp")
        for case in CASES if group else ():
            against_twin(group, *case)
    return True


def test_three_steps_equal_one_process_on_the_whole_batch():
    assert all(ranks.run(all_groups, 4))
