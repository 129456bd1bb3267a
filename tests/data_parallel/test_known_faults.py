"""Faults that public data parallelism has had, as scenarios on real ranks, against one process in float64."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from fivedim import comm, mesh, train
from fivedim.data_parallel import Bucketed, Naive, Overlapped, mean
from fivedim.errors import UserError
from fivedim.lab import ranks
from fivedim.model import GPT, GPTConfig
from fivedim.optim import adamw, sgd
from fivedim.precision import MixedPrecision
from tests.data_parallel.cases import close

EACH = {
    "naive": Naive,
    "bucketed": Bucketed,
    "one gradient a bucket": lambda module, group: Overlapped(module, group, cap_mib=0),
    "one bucket": Overlapped,
}


def gradients_of(module, loss):
    """The gradients of `loss(module)` in this process alone."""
    twin = copy.deepcopy(module)
    loss(twin).backward()
    return {name: p.grad for name, p in twin.named_parameters()}


class Branches(nn.Module):
    """Three branches, of which a forward uses those that are named."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4).double() for _ in range(3))

    def forward(self, x, names):
        return sum(getattr(self, name)(x).square().mean() for name in names)


def unused(wrap, make):
    """All branches in step 0, then A on rank 0, B on rank 1 and C nowhere."""
    group, rank = dist.group.WORLD, dist.get_rank()
    torch.manual_seed(rank)
    model = Branches()
    replica = wrap(model, group)
    twin = copy.deepcopy(model)
    optimizer, serial = make(model.parameters()), make(twin.parameters())
    for step in range(4):
        used = ["a", "b"] if step else ["abc", "abc"]
        xs = [torch.randn(3, 4, generator=torch.Generator().manual_seed(7 * step + peer)).double() for peer in (0, 1)]
        local = gradients_of(twin, lambda model, xs=xs, used=used: model(xs[0], used[0]))
        kept = model.c.weight.detach().clone()
        for each in (optimizer, serial):
            each.zero_grad()
        replica(xs[rank], used[rank]).backward()
        (sum(twin(x, names) for x, names in zip(xs, used, strict=True)) / 2).backward()
        if step:
            assert model.c.weight.grad is None
            assert torch.equal(model.a.weight.grad, local["a.weight"] / 2)
        for each in (optimizer, serial):
            each.step()
        assert torch.equal(kept, model.c.weight) == bool(step)
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            close(ours, theirs, f"weight in step {step}")


def used_before_the_last_microbatch_only():
    """What only an unsynchronized microbatch used is reduced with the next synchronized one."""
    group, rank = dist.group.WORLD, dist.get_rank()
    for wrap in EACH.values():
        torch.manual_seed(0)
        model = Branches()
        replica, x = wrap(model, group), torch.full((1, 4), rank + 1.0).double()
        local = [gradients_of(model, lambda model, v=v: model(torch.full((1, 4), v).double(), "a")) for v in (1.0, 2.0)]
        with replica.no_sync():
            replica(x, "a").backward()
        replica(x, "b").backward()
        close(model.a.weight.grad, (local[0]["a.weight"] + local[1]["a.weight"]) / 2, "a")
        assert model.c.weight.grad is None


def every_unused():
    for wrap in EACH.values():
        unused(wrap, lambda parameters: sgd(parameters, 0.1, momentum=0.9, weight_decay=0.1))
        unused(wrap, adamw)
    used_before_the_last_microbatch_only()


def test_B09_a_parameter_that_no_rank_used_has_no_gradient():
    ranks.run(every_unused, 2)


class Reused(nn.Module):
    """A layer applied twice under checkpointing, on the stream or on two inputs, between a tied embedding."""

    def __init__(self, reentrant, two_inputs):
        super().__init__()
        self.reentrant, self.two_inputs = reentrant, two_inputs
        self.embedding, self.layer = nn.Embedding(7, 8).double(), nn.Linear(8, 8).double()

    def forward(self, tokens):
        x = self.embedding(tokens)
        y = checkpoint(self.layer, x, use_reentrant=self.reentrant).tanh()
        z = checkpoint(self.layer, x + 1 if self.two_inputs else y, use_reentrant=self.reentrant)
        return (y * z) @ self.embedding.weight.t()


def reused():
    """Each case is right to 1e-12; the one whose bucket has left before its gradient is complete is refused by name."""
    group, rank = dist.group.WORLD, dist.get_rank()
    tokens = [torch.tensor([[1, 3, 6]]) + peer for peer in (-1, 0)]
    for reentrant in (True, False):
        for two_inputs in (True, False):
            for name, wrap in EACH.items():
                torch.manual_seed(0)
                model = Reused(reentrant, two_inputs)
                twin = copy.deepcopy(model)
                replica = wrap(model, group)
                if reentrant and name == "one gradient a bucket":
                    with pytest.raises(UserError, match=r"layer\..*: re-entrant checkpointing"):
                        replica(tokens[rank]).square().sum().backward()
                    replica(tokens[rank])  # and nothing is left under way
                    continue
                replica(tokens[rank]).square().sum().backward()
                (sum(twin(each).square().sum() for each in tokens) / 2).backward()
                for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
                    close(ours.grad, theirs.grad, (reentrant, two_inputs, name), 1e-12 * theirs.grad.abs().max())


def test_B11_a_gradient_that_is_completed_twice_is_right_or_refused():
    import torch._dynamo  # noqa: F401  checkpointing does so, for seconds: here it is once for all ranks

    ranks.run(reused, 2)


class Swapped(nn.Module):
    """Two parameters of one shape. The one used first lies deeper in the graph: its gradient is ready last."""

    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.full((4,), value)) for value in (1.0, 2.0))

    def forward(self, first):
        factor = {"a": 10, "b": 1000}
        (second,) = factor.keys() - {first}
        y = factor[first] * getattr(self, first)
        return (y * 1.0 + factor[second] * getattr(self, second)).sum()


def swapped():
    group, rank = dist.group.WORLD, dist.get_rank()
    for wrap in EACH.values():
        model, order = Swapped(), []
        for name, p in model.named_parameters():
            p.register_post_accumulate_grad_hook(lambda _, name=name, order=order: order.append(name))
        replica = wrap(model, group)
        for _ in range(3):
            replica("ab"[rank]).backward()
            assert torch.equal(model.a.grad, torch.full((4,), 10.0))
            assert torch.equal(model.b.grad, torch.full((4,), 1000.0))
            model.a.grad = model.b.grad = None
        assert order == list(["ba", "ab"][rank]) * 3
    with pytest.raises(UserError, match="the ranks' models differ"):
        Overlapped([nn.Linear(3, 4), nn.Linear(4, 3)][rank], group)
    frozen = Swapped()
    frozen.get_parameter("ab"[rank]).requires_grad_(False)
    with pytest.raises(UserError, match="requires_grad"):
        Naive(frozen, group)


def test_B13_gradients_that_are_ready_in_another_order_on_each_rank():
    ranks.run(swapped, 2)


def uneven_microbatches():
    """Two ranks, two microbatches each, of 1, 7, 3 and 0 valid targets."""
    group, rank = dist.group.WORLD, dist.get_rank()
    shape, stream = GPTConfig(vocabulary=11, context=8, layers=1, heads=2, width=12), torch.Generator().manual_seed(3)
    parts = []
    for valid in (1, 7, 3, 0):
        tokens, targets = torch.randint(11, (2, 2, 4), generator=stream)
        targets.view(-1)[valid:] = train.IGNORE
        parts.append((tokens, targets))
    for wrap in EACH.values():
        model, twin = (GPT(shape, seed=seed).double() for seed in (rank, 0))
        own = parts[2 * rank : 2 * rank + 2]
        train.step(wrap(model, group), sgd(model.parameters()), own, mean(train.valid_tokens(own), group))
        tokens, targets = (torch.cat(each) for each in zip(*parts, strict=True))
        torch.nn.functional.cross_entropy(twin(tokens).flatten(0, 1), targets.flatten()).backward()
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            close(ours.grad, theirs.grad, "gradient")


def test_B15_every_valid_token_weighs_the_same_on_every_rank():
    ranks.run(uneven_microbatches, 2)


class Buffers(nn.Module):
    """Batch statistics, an int64 counter, and a table that no checkpoint has."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.norm.running_mean.normal_()
        self.norm.num_batches_tracked.random_(100)
        self.register_buffer("table", torch.randn(5), persistent=False)

    def forward(self, x):
        return self.norm(self.linear(x.to(self.linear.weight.dtype)).float()) * self.table[:4]


def buffers_are_position_0s(module, group, drop=()):
    for name, x in module.named_buffers():
        assert name in drop or torch.equal(x, comm.broadcast(x, group)), name


def buffered():
    """Position 0's buffers everywhere once wrapped and at each forward; the dtypes are kept, also by bf16 compute."""
    grid = mesh.build(dp=2, tp=2)
    for group in (dist.group.WORLD, grid.group("dp")):
        torch.manual_seed(dist.get_rank())
        model = Buffers()
        optimizer = MixedPrecision(model.linear.parameters(), sgd, accumulate=torch.float32)
        replica = Overlapped(model, group)
        buffers_are_position_0s(model, group)
        assert {bucket.flat.dtype for bucket in replica.buckets} == {torch.float32}  # in which bf16 weights accumulate
        for _ in range(3):
            replica(torch.randn(3, 4)).square().sum().backward()
            optimizer.step()
        buffers_are_position_0s(model, group, drop=("norm.running_mean", "norm.running_var"))
        means = comm.all_gather(model.norm.running_mean[None], group)
        assert not torch.equal(means[0], means[-1])  # each rank's own batch, until the next forward
        replica.eval()
        with torch.no_grad():
            replica(torch.randn(3, 4))
        buffers_are_position_0s(model, group)
        assert [x.dtype for x in model.buffers()] == [torch.float32, *[torch.float32] * 2, torch.int64]
        table = model.table.clone()
        model.load_state_dict(model.state_dict())
        assert torch.equal(model.table, table)


def broadcasts():
    """One broadcast a dtype before each forward that follows a synchronized one, none after the others."""
    model = Buffers()
    replica = Overlapped(model, dist.group.WORLD)
    counts = []
    for synchronized in (True, True, False, False, True, True):
        with comm.count() as traffic:
            run(replica, synchronized)
        counts.append(traffic.calls(collective="broadcast"))
    return counts


def run(replica, synchronized):
    if synchronized:
        replica(torch.randn(3, 4)).sum().backward()
        return
    with replica.no_sync():
        replica(torch.randn(3, 4)).sum().backward()


def buffered_and_broadcasts():
    buffered()
    return broadcasts()


def test_B17_buffers_are_those_of_position_0_and_keep_their_dtypes():
    assert ranks.run(buffered_and_broadcasts, 4)[0] == [2, 2, 2, 0, 0, 2]
