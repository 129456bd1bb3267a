"""Every way of averaging equals one process on the whole batch, in float64, in groups of 1, 2, 3 and 4 ranks."""

from functools import partial

import pytest
import torch
import torch.distributed as dist

from fivedim import comm, mesh, train
from fivedim.data_parallel import Bucketed, Naive, Overlapped, mean
from fivedim.errors import UserError
from fivedim.lab import ranks
from fivedim.model import GPT, GPTConfig
from fivedim.optim import adamw, sgd
from tests.data_parallel.cases import close

SMALL = GPTConfig(vocabulary=11, context=8, layers=1, heads=2, width=12)  # its embedding is tied
GRADIENTS = 16
CAP = 0.003  # MiB: several buckets, and some of them with several gradients
WRAPPERS = {
    "naive": Naive,
    "bucketed": partial(Bucketed, cap_mib=CAP),
    "overlapped": partial(Overlapped, cap_mib=CAP),
    "overlapped, default caps": Overlapped,
}
OPTIMIZERS = {"sgd": partial(sgd, rate=0.5, momentum=0.9), "adamw": adamw}
SEQUENCES, VALID = (3, 1, 2, 5), (2, 0, 1, 0)  # by position: uneven batches, and in the last less than a target a rank


def batch(position, step):
    """A rank's own tokens and targets [B, 5]; from step 1 on ranks have batches of different sizes."""
    stream = torch.Generator().manual_seed(10 * step + position)
    tokens, targets = torch.randint(11, (2, SEQUENCES[position] if step else 2, 5), generator=stream)
    if step == 2:
        targets.view(-1)[VALID[position] :] = train.IGNORE
    return tokens, targets


def same_everywhere(model, group):
    """Bit-identical on all ranks: the largest of every element is the smallest, too."""
    weights = torch.cat([x.flatten() for x in model.parameters()]).detach()
    assert torch.equal(comm.all_reduce_max(weights, group), -comm.all_reduce_max(-weights, group))


def against_twin(group, wrap, make):
    """Three steps of ours, begun with weights of this rank's own, and of rank 0's weights on everybody's batches."""
    model, twin = GPT(SMALL, seed=group.rank()).double(), GPT(SMALL, seed=0).double()
    started = {name: x.clone() for name, x in twin.named_parameters()}
    replica = wrap(model, group)
    optimizer, serial = make(model.parameters()), make(twin.parameters())
    for step in range(3):
        own = [batch(group.rank(), step)]
        loss = train.step(replica, optimizer, own, mean(train.valid_tokens(own), group))
        wanted = train.step(twin, serial, [batch(position, step) for position in range(group.size())])
        close(comm.all_reduce(loss, group) / group.size(), wanted, "loss")
        for (name, ours), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
            close(ours.grad, theirs.grad, f"gradient of {name} in step {step}")
            close(ours, theirs, f"{name} after step {step}")
    assert all((x - started[name]).abs().max() > 1e-4 for name, x in model.named_parameters())
    same_everywhere(model, group)


def all_groups():
    """Against the twin in every group; on rank 0, the all-reduces of float64 by wrapper, at N = 4."""
    for size in (1, 2, 3, 4):
        group = mesh.subgroups([list(range(size))], "dp")
        if group is None:
            continue
        counts = {}
        for name, wrap in WRAPPERS.items():
            for optimizer in ("sgd", "adamw") if name == "overlapped" else ("sgd",):
                with comm.count() as traffic:
                    against_twin(group, wrap, OPTIMIZERS[optimizer])
                counts[name] = traffic.calls(collective="all_reduce", dtype="float64")
    return counts


def test_three_steps_equal_one_process_on_the_whole_batch():
    counts = ranks.run(all_groups, 4)[0]
    assert counts["naive"] - counts["overlapped, default caps"] == 3 * (GRADIENTS - 1)
    assert counts["overlapped, default caps"] < counts["bucketed"] == counts["overlapped"] < counts["naive"]


def microbatches_without_sync():
    """Only the last of three backwards is synchronized: the same mean gradient, a third of the collectives."""
    group = dist.group.WORLD
    for wrap in WRAPPERS.values():
        model, twin = (GPT(SMALL, seed=seed).double() for seed in (group.rank(), 0))
        replica = wrap(model, group)
        parts = [batch(group.rank(), step) for step in range(3)]
        for step in range(2):
            gradients(model)
            with comm.count() as often:
                for part in parts:
                    loss(replica, part).backward()
            wanted = gradients(model)
            with comm.count() as once:
                with replica.no_sync():
                    loss(replica, parts[0]).backward()
                    with replica.no_sync():
                        pass
                    loss(replica, parts[1]).backward()
                loss(replica, parts[2]).backward()
            found = gradients(model)
            assert often.calls() == 3 * once.calls() > 0
            for position in range(group.size()):
                for number in range(3):
                    (loss(twin, batch(position, number)) / group.size()).backward()
            for name, gradient in gradients(twin).items():
                close(found[name], gradient, f"{name}, step {step}")
                close(wanted[name], gradient, f"{name} synchronized each time, step {step}")


def loss(model, part):
    tokens, targets = part
    return torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), reduction="sum")


def gradients(model):
    """Take all gradients out of the model."""
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    for p in model.parameters():
        p.grad = None
    return found


def exceptions():
    """After an exception, in no_sync or amid a backward, the next step is synchronized and right."""
    group = dist.group.WORLD
    for wrap in WRAPPERS.values():
        model = GPT(SMALL, seed=group.rank()).double()
        replica = wrap(model, group)
        mine = batch(group.rank(), 1)
        loss(replica, mine).backward()
        wanted = gradients(model)
        with pytest.raises(KeyError), replica.no_sync():
            raise KeyError
        handle = model.blocks[0].mlp.up.weight.register_hook(interrupt)
        with pytest.raises(KeyError):
            loss(replica, mine).backward()
        handle.remove()
        gradients(model)
        loss(replica, mine).backward()
        found = gradients(model)
        assert all(torch.equal(found[name], gradient) for name, gradient in wanted.items())


def interrupt(_):
    raise KeyError


def test_no_sync_and_exceptions():
    ranks.run(without_sync_and_exceptions, 3)


def without_sync_and_exceptions():
    microbatches_without_sync()
    exceptions()


class Odd(torch.nn.Module):
    """Parameters of three dtypes, a frozen one, an empty one, a scalar, and a transposed one."""

    def __init__(self, seed):
        super().__init__()
        stream = torch.Generator().manual_seed(seed)
        self.wide = torch.nn.Parameter(torch.randn(5, 3, generator=stream, dtype=torch.float64).t())
        self.low = torch.nn.Parameter(torch.randn(3, generator=stream).bfloat16())
        self.frozen = torch.nn.Parameter(torch.randn(3, generator=stream), requires_grad=False)
        self.empty = torch.nn.Parameter(torch.randn(0, 3, generator=stream))
        self.scale = torch.nn.Parameter(torch.randn((), generator=stream))

    def forward(self, x):
        """A dict of outputs, one of them without graph."""
        y = x @ self.wide
        return {"y": [y[:, :3] * self.low.double() * self.scale + self.frozen], "empty": self.empty.sum(), "x": x}


def unlike():
    group = dist.group.WORLD
    for wrap in WRAPPERS.values():
        model, twin = (Odd(seed) for seed in (group.rank(), 0))
        replica = wrap(model, group)
        xs = [torch.randn(4, 3, generator=torch.Generator().manual_seed(9 + peer)).double() for peer in range(3)]
        outputs = replica(xs[group.rank()])
        (outputs["y"][0].square().sum() + outputs["empty"]).backward()
        for x in xs:
            ((twin(x)["y"][0].square().sum() + twin.empty.sum()) / 3).backward()
        assert {bucket.flat.dtype for bucket in replica.buckets} == {torch.float64, torch.bfloat16, torch.float32}
        assert torch.equal(model.frozen, twin.frozen)
        for (name, ours), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
            if name == "frozen":
                assert ours.grad is None
                continue
            tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2}[ours.dtype]
            close(ours.grad, theirs.grad, name, tolerance * theirs.grad.abs().max().item() if theirs.numel() else 0)


def large_halves():
    """B55: the mean of two large fp16 gradients is finite."""
    layer = torch.nn.Linear(3, 1, bias=False).half()
    Overlapped(layer, dist.group.WORLD)(torch.full((1, 3), 30000.0, dtype=torch.half)).sum().backward()
    assert torch.equal(layer.weight.grad, torch.full((1, 3), 30000.0, dtype=torch.half))


def refused():
    """A sparse gradient, and one in another dtype than when the model was wrapped."""
    table = torch.nn.Embedding(5, 3, sparse=True)
    with pytest.raises(UserError, match="weight: its gradient is torch.sparse_coo"):
        Bucketed(table, dist.group.WORLD)(torch.tensor([1])).sum().backward()
    linear = torch.nn.Linear(3, 3)
    replica = Overlapped(linear, dist.group.WORLD)
    linear.bfloat16()
    with pytest.raises(UserError, match="bias: its gradient is torch.strided torch.bfloat16"):
        replica(torch.randn(2, 3).bfloat16()).sum().backward()


def unlike_and_refused():
    unlike()
    large_halves()
    refused()


def test_parameters_of_every_kind_and_what_is_refused():
    ranks.run(unlike_and_refused, 3)
