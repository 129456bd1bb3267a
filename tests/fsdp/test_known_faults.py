"""Faults that public sharded data parallelism has had, as scenarios on real ranks, against one process in float64."""

import copy
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fivedim import mesh
from fivedim.errors import UserError
from fivedim.fsdp import FullySharded, checkpoint, flat, rows
from fivedim.lab import meter, ranks
from tests.data_parallel.cases import close
from tests.fsdp.cases import Clipped, clip_serial, clip_sharded, same_as, sharded_twin, steps

ADAMW = partial(torch.optim.AdamW, lr=0.1)


class Uneven(nn.Module):
    """Dim 0 of 1, 2, 3 and 5, an empty parameter, and a scalar."""

    def __init__(self, seed):
        super().__init__()
        stream = torch.Generator().manual_seed(seed)
        for name, shape in {"one": (1, 3), "two": (2, 3), "three": (3, 2), "five": (5, 3), "none": (0, 3)}.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape, generator=stream).double()))
        self.scale = nn.Parameter(torch.randn((), generator=stream).double())
        self.register_buffer("shift", torch.full((3,), float(seed)).double())

    def forward(self, x):
        """[B, 3] to [B, 5]."""
        assert (self.one.shape, self.three.shape, self.five.shape, self.scale.shape) == ((1, 3), (3, 2), (5, 3), ())
        mixed = (x * self.one + self.shift) @ self.three @ self.two @ self.five.t()
        return mixed * self.scale + self.none.sum()


def one_step(sharded, twin, optimizer, serial, scaler, step):
    """A scaled, clipped step of both on this step's inputs; the weights are alike."""
    group = sharded.group
    xs = [torch.randn(4, 3, generator=torch.Generator().manual_seed(9 * step + peer)).double() for peer in range(4)]
    for each in (optimizer, serial):
        each.optimizer.zero_grad()
    scaler.scale(sharded(xs[group.rank()]).square().mean()).backward()
    scaler.unscale_(optimizer.optimizer)
    mine = xs[: group.size()]
    (sum(twin(x).square().mean() for x in mine) / len(mine)).backward()
    optimizer.clip()
    serial.clip()
    scaler.step(optimizer.optimizer)
    scaler.update()
    serial.optimizer.step()
    found = checkpoint.state_dict(sharded)
    for name, wanted in twin.state_dict().items():
        close(found[name], wanted, f"{name} after step {step}")


def pair(group, layout):
    """Ours, the twin, and a clipped AdamW of each."""
    model, twin = Uneven(group.rank()), Uneven(0)
    sharded = FullySharded(model, group, layout=layout)
    optimizer = Clipped(ADAMW(sharded.parameters()), lambda: clip_sharded(sharded))
    return sharded, twin, optimizer, Clipped(ADAMW(twin.parameters()), lambda: clip_serial(twin))


def uneven_and_saved():
    """B25: train on 4 ranks, save; go on there, and from what was saved on 3 and 2 ranks: the same as one process."""
    world = dist.group.WORLD
    for layout in (rows, flat):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        sharded, twin, optimizer, serial = pair(world, layout)
        one_step(sharded, twin, optimizer, serial, scaler, 0)
        saved, state = checkpoint.state_dict(sharded), checkpoint.optimizer_state_dict(sharded, optimizer.optimizer)
        assert list(saved) == list(twin.state_dict())
        wanted = {name: serial.optimizer.state[p] for name, p in twin.named_parameters()}
        for name, found in state["state"].items():
            assert found.keys() == wanted[name].keys()
            for key, x in found.items():
                close(x, wanted[name][key], f"{name} {key}")
        then = copy.deepcopy((twin.state_dict(), serial.optimizer.state_dict()))
        one_step(sharded, twin, optimizer, serial, scaler, 1)
        for size in (3, 2):
            group = mesh.subgroups([list(range(size))], "fewer")
            if group is not None:
                sharded, twin, optimizer, serial = pair(group, layout)
                checkpoint.load_state_dict(sharded, saved)
                checkpoint.load_optimizer_state_dict(sharded, optimizer.optimizer, state)
                twin.load_state_dict(then[0])
                serial.optimizer.load_state_dict(copy.deepcopy(then[1]))
                one_step(sharded, twin, optimizer, serial, torch.amp.GradScaler("cpu", init_scale=256.0), 1)
                assert optimizer.optimizer.state[sharded.module.five]["step"] == 2
                refused(sharded, optimizer.optimizer, saved, state)


def refused(sharded, optimizer, saved, state):
    """Checkpoints of another model are named."""
    with pytest.raises(UserError, match="five is not both in it and in the model"):
        checkpoint.load_state_dict(sharded, {name: x for name, x in saved.items() if name != "five"})
    with pytest.raises(UserError, match=r"five is \[3, 5\], the model has \[5, 3\]"):
        checkpoint.load_state_dict(sharded, saved | {"five": saved["five"].t()})
    with pytest.raises(UserError, match="other parameter groups"):
        checkpoint.load_optimizer_state_dict(sharded, torch.optim.SGD([sharded.module.five]), state)
    optimizer.state[sharded.module.one]["exp_avg"] = torch.zeros(7)
    with pytest.raises(UserError, match="one: its optimizer's exp_avg is not of its shape"):
        checkpoint.optimizer_state_dict(sharded, optimizer)
    with pytest.raises(UserError, match="unit Linear: it is no part of the model"):
        FullySharded(nn.Linear(2, 2), sharded.group, [nn.Linear(2, 2)])
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(UserError, match="the model: its parameters differ in dtype"):
        FullySharded(mixed, sharded.group)


def parameter_bytes(sharded):
    """What lives of the sharded model's parameters, and what it may be."""
    found = sum(p.untyped_storage().nbytes() for p in sharded.module.parameters())
    return found, sum(unit.sizes[sharded.group.rank()] * 8 for unit in sharded.units)


def evaluated():
    """B27: forwards without backward, with and without graph, leave nothing whole and nothing stale."""
    world = dist.group.WORLD
    smaller = mesh.subgroups([[0], [1], [2], [3]], "alone")
    tokens = torch.arange(5)[None]
    for reshard in (True, False, smaller):
        sharded, twin = sharded_twin(world, reshard=reshard)
        optimizer, serial = steps(sharded, twin, ADAMW, world, count=1)
        with meter.Live() as live:
            live.label("before", [tokens, *sharded.parameters(), *twin.parameters()])
            before = live.total
            for grad in (False, True, False):
                with torch.set_grad_enabled(grad):
                    out = sharded(tokens).detach()
                close(out, twin(tokens).detach(), "output before the step", 1e-11)
                del out
                assert live.total == before, f"{live.total - before} bytes more after a forward"
                found, wanted = parameter_bytes(sharded)
                assert found == wanted
        optimizer.step()
        serial.step()
        close(sharded(tokens), twin(tokens), "output after a step", 1e-11)
        checkpoint.load_state_dict(sharded, {name: x + 0.01 for name, x in twin.state_dict().items()})
        twin.load_state_dict({name: x + 0.01 for name, x in twin.state_dict().items()})
        close(sharded(tokens), twin(tokens), "output after a checkpoint", 1e-11)
        for each in (optimizer, serial):
            each.zero_grad()
        optimizer.param_groups[0]["lr"] = serial.param_groups[0]["lr"] = 0.01
        sharded(tokens).square().mean().backward()
        twin(tokens).square().mean().backward()
        same_as(sharded, twin, "after all this")


def interrupt(*_):
    raise KeyError("here")


def interrupted():
    """B29: an exception in the forward or the backward of a unit, caught on all ranks; the next step is right."""
    world = dist.group.WORLD
    tokens = torch.full((1, 3), dist.get_rank())
    for prefetch, reshard in ((1, True), (2, True), (1, False)):
        for where in ("forward", "backward"):
            sharded, twin = sharded_twin(world, prefetch=prefetch, reshard=reshard)
            optimizer, serial = steps(sharded, twin, ADAMW, world, count=1)
            layer = sharded.module.blocks[0].mlp.up
            hook = layer.register_forward_hook if where == "forward" else layer.register_full_backward_hook
            handle = hook(interrupt)
            with pytest.raises(KeyError), sharded.no_sync():
                sharded(tokens).sum().backward()
            with pytest.raises(KeyError):
                sharded(tokens).sum().backward()
            if where == "forward":  # after a backward it is the next forward that clears up
                assert not sharded._coming
                assert parameter_bytes(sharded)[0] == parameter_bytes(sharded)[1]
            handle.remove()
            for each in (optimizer, serial):
                each.zero_grad()
            sharded(tokens).sum().backward()
            for peer in range(world.size()):
                (twin(torch.full((1, 3), peer)).sum() / world.size()).backward()
            same_as(sharded, twin, f"after an exception in {where}")
            found, wanted = parameter_bytes(sharded)
            assert found == wanted
            assert not sharded._coming


def all_faults():
    evaluated()
    interrupted()
    uneven_and_saved()


def test_B25_B27_B29():
    import torch._dynamo  # noqa: F401  optimizers do so, for seconds: here it is once for all ranks

    ranks.run(all_faults, 4, timeout=60)
