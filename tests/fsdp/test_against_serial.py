"""Sharded training equals one process on the whole batch, in float64, in groups of 1, 2, 3 and 4 ranks."""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint as recompute

from fivedim import comm, mesh
from fivedim.fsdp import FullySharded, Policy, flat, rows
from fivedim.lab import ranks
from fivedim.model import GPT
from tests.data_parallel.cases import close
from tests.data_parallel.test_against_serial import batch, loss
from tests.fsdp.cases import SHAPE, models, same_as, sharded_twin, steps, whole_gradients

SGD, ADAMW = partial(torch.optim.SGD, lr=0.5, momentum=0.9), partial(torch.optim.AdamW, lr=0.01)
CASES = [
    ({"layout": rows}, SGD, False),
    ({"layout": flat, "prefetch": 0}, SGD, False),
    ({"layout": rows, "prefetch": 2}, ADAMW, True),
    ({"layout": flat, "reshard": False}, ADAMW, True),
]


def every_group():
    for size in (1, 2, 3, 4):
        group = mesh.subgroups([list(range(size))], "dp")
        if group is not None:
            for options, make, clipped in CASES:
                sharded, twin = sharded_twin(group, **options)
                started = {name: x.clone() for name, x in twin.named_parameters()}
                steps(sharded, twin, make, group, clipped=clipped)
                assert all((x - started[name]).abs().max() > 1e-4 for name, x in twin.named_parameters())
    return True


def in_a_smaller_group_and_over_replicas():
    """Parameters are kept over 1, 2 or, unevenly, 3 ranks of 4; a 2 x 2 mesh; both at once."""
    world = dist.group.WORLD
    for within, layout in (([[0], [1], [2], [3]], flat), ([[0, 1], [2, 3]], rows), ([[0, 1, 3], [2]], rows)):
        smaller = mesh.subgroups(within, "within")
        steps(*sharded_twin(world, layout=layout, reshard=smaller), SGD, world, count=2)
    shard, replicas = mesh.subgroups([[0, 1], [2, 3]], "shard"), mesh.subgroups([[0, 2], [1, 3]], "replicate")
    alone = mesh.subgroups([[0], [1], [2], [3]], "alone")
    for reshard in (True, alone):
        model, twin = models(dist.get_rank())
        sharded = FullySharded(model, shard, model.blocks, reshard=reshard, replicas=replicas)
        steps(sharded, twin, ADAMW, shard, count=2, replicas=replicas)


def no_sync(group):
    """Two of three backwards only accumulate: the same mean gradient, a third of the reductions."""
    for reshard in (True, False):
        sharded, twin = sharded_twin(group, reshard=reshard)
        parts = [batch(group.rank(), step) for step in range(3)]
        for step in range(2):
            with comm.count() as traffic:
                with sharded.no_sync():
                    loss(sharded, parts[0]).backward()
                    with sharded.no_sync():
                        pass
                    loss(sharded, parts[1]).backward()
                assert all(p.grad is None for p in sharded.parameters())
                loss(sharded, parts[2]).backward()
            assert traffic.calls(collective="reduce_scatter") == 3
            for position in range(group.size()):
                for number in range(3):
                    (loss(twin, batch(position, number)) / group.size()).backward()
            same_as(sharded, twin, f"in step {step}")
            sharded.zero_grad()
            twin.zero_grad()


class Branches(nn.Module):
    """Two branches, of which a forward uses those that are named, and a layer used twice."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.a, self.b, self.twice = (nn.Linear(4, 4).double() for _ in range(3))

    def forward(self, x, names):
        """A scalar."""
        return sum(self.twice(self.twice(getattr(self, name)(x)).tanh()).square().mean() for name in names)


def units_in_another_order(group):
    """A branch in one microbatch, the other in the next, both in another order; one used before the last one only."""
    model, twin = Branches(group.rank()), Branches(0)
    sharded = FullySharded(model, group, [model.a, model.b, model.twice], prefetch=2)
    xs = [torch.randn(3, 4, generator=torch.Generator().manual_seed(peer)).double() for peer in range(group.size())]
    for names in ("ab", "a", "ba", "b"):
        with sharded.no_sync():
            sharded(xs[group.rank()], names).backward()
        sharded(xs[group.rank()], "b").backward()
        for x in xs:
            ((twin(x, names) + twin(x, "b")) / group.size()).backward()
        gradients = whole_gradients(sharded)
        assert ("a.weight" in gradients) == ("a" in names)
        for name, p in twin.named_parameters():
            if p.grad is not None:
                close(gradients[name], p.grad, f"{name} after {names}")
        sharded.zero_grad()
        twin.zero_grad()


class Odd(nn.Module):
    """A frozen parameter, and one of two units; or units that are recomputed in the backward."""

    def __init__(self, seed, reentrant=None):
        super().__init__()
        torch.manual_seed(seed)
        self.a, self.b, self.c = (nn.Linear(5, 5).double() for _ in range(3))
        if reentrant is None:
            self.c.weight = self.a.weight
        self.b.bias.requires_grad_(False)
        self.reentrant = reentrant

    def forward(self, x):
        """A dict, nested."""
        for layer in (self.a, self.b, self.c):
            x = (layer(x) if self.reentrant is None else recompute(layer, x, use_reentrant=self.reentrant)).tanh()
        return {"y": [x]}


def recomputed_frozen_and_shared(group):
    for reentrant in (None, False, True):
        model, twin = Odd(group.rank(), reentrant), Odd(0, reentrant)
        sharded = FullySharded(model, group, [model.a, model.b, model.c])
        if reentrant is None:
            assert [(unit.name, len(unit.shards)) for unit in sharded.units] == [("", 1), ("a", 1), ("b", 2), ("c", 1)]
        x = torch.randn(3, 5, generator=torch.Generator().manual_seed(group.rank())).double().requires_grad_()
        sharded(x)["y"][0].square().sum().backward()
        for peer in range(group.size()):
            other = torch.randn(3, 5, generator=torch.Generator().manual_seed(peer)).double().requires_grad_()
            (twin(other)["y"][0].square().sum() / group.size()).backward()
            if peer == group.rank():
                close(x.grad * 1.0, other.grad * group.size(), f"gradient of the input, {reentrant}")
        gradients = whole_gradients(sharded)
        assert gradients.keys() == {name for name, p in twin.named_parameters() if p.requires_grad}
        for name, gradient in gradients.items():
            close(gradient, dict(twin.named_parameters())[name].grad, f"{name}, {reentrant}")


def policy(group):
    """bf16 to compute, fp32 to reduce and to keep: as one process that computes in bf16, but for the order of sums."""
    seen = []
    model, twin = GPT(SHAPE, seed=group.rank()), GPT(SHAPE, seed=0)
    model.blocks[0].mlp.up.register_forward_hook(lambda layer, args, out: seen.append((layer.weight.dtype, out.dtype)))
    sharded = FullySharded(model, group, model.blocks, policy=Policy(torch.bfloat16, torch.float32, torch.float64))
    twin.bfloat16()
    tokens = batch(group.rank(), 1)[0]
    with comm.count() as traffic:
        logits = sharded(tokens)
        logits.sum().backward()
    assert seen == [(torch.bfloat16, torch.bfloat16)]
    assert {(row["collective"], row["dtype"]) for row in traffic.rows()} == {
        ("all_gather", "bfloat16"),
        ("reduce_scatter", "float32"),
    }
    assert torch.equal(logits, twin(tokens).double())
    for peer in range(group.size()):
        twin(batch(peer, 1)[0]).sum().backward()
    for name, gradient in whole_gradients(sharded).items():
        wanted = dict(twin.named_parameters())[name].grad.float() / group.size()
        close(gradient, wanted, name, 0.03 * wanted.abs().max().item())


def everything():
    for size in (1, 3):
        group = mesh.subgroups([list(range(size))], "dp")
        if group is not None:
            no_sync(group)
            units_in_another_order(group)
            recomputed_frozen_and_shared(group)
            policy(group)
    in_a_smaller_group_and_over_replicas()
    return every_group()


def test_three_steps_equal_one_process_however_it_is_sharded():
    import torch._dynamo  # noqa: F401  checkpointing does so, for seconds: here it is once for all ranks

    assert all(ranks.run(everything, 4, timeout=60))
