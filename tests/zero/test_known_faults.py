"""Faults that public optimizers with dealt-out state have had, as scenarios on real ranks, against one process."""

import copy
import io
import time
from functools import partial

import pytest
import torch
import torch._dynamo  # noqa: F401  every optimizer of torch's imports it: once here, not on every rank
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from fivedim import mesh
from fivedim.errors import UserError
from fivedim.lab import ranks
from fivedim.zero import Stage1, Stage2, consolidate
from tests.data_parallel.cases import close

STAGES = (Stage1, Stage2)
SGD, ADAMW = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1), partial(torch.optim.AdamW, lr=1e-2)


class Tied(nn.Module):
    """First and last layer are one; a layer that nobody uses, and one that rank 0 alone uses from step 1 on."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Embedding(10, 6).double(), nn.Linear(6, 10, bias=False).double()
        self.last.weight = self.first.weight
        self.unused, self.some = nn.Linear(5, 3).double(), nn.Linear(6, 6).double()

    def forward(self, tokens, uses=True):
        x = self.first(tokens)
        return self.last(self.some(x) if uses else x).square().mean()


def tokens(rank, step):
    return torch.randint(10, (4,), generator=torch.Generator().manual_seed(10 * step + rank))


def train_tied(group, stage, make):
    """B09, B19: four steps with clipping; a parameter that no rank used is not even decayed."""
    torch.manual_seed(3)
    model = Tied()
    twin = copy.deepcopy(model)
    ours, serial = stage(model, group, make, cap_mib=0), make(twin.parameters())
    for step in range(4):
        ours.zero_grad()
        serial.zero_grad()
        model(tokens(group.rank(), step), step == 0 or group.rank() == 0).backward()
        for rank in range(group.size()):
            (twin(tokens(rank, step), step == 0 or rank == 0) / group.size()).backward()
        norm = ours.clip_(0.5)
        close(norm, nn.utils.clip_grad_norm_(twin.parameters(), 0.5), "norm: the tied weight counts once")
        ours.step()
        serial.step()
        for (name, a), b in zip(model.named_parameters(), twin.parameters(), strict=True):
            close(a, b, f"{stage.__name__}: {name} after step {step}")
    assert model.first.weight is model.last.weight
    owned = [piece for bucket in ours.buckets for piece in bucket.pieces]
    assert sum(piece.name == "first.weight" for piece in owned) == 1
    assert not any(ours.optimizer.state[piece.master] for piece in owned if piece.name.startswith("unused"))


def layers():
    torch.manual_seed(5)
    sizes = (17, 31, 7, 5, 3, 11, 1, 13, 2, 9)
    wide = [nn.Linear(a, b).double() for a, b in zip(sizes, sizes[1:], strict=False)]
    return nn.Sequential(*(layer for pair in zip(wide, [nn.Tanh() for _ in wide], strict=True) for layer in pair))


def train_layers(group, wrap):
    """Five steps of two microbatches; rank 1's backward is slow. The weights."""
    model = layers()
    if group.rank() == 1:
        model[8].weight.register_hook(lambda _: time.sleep(0.005))
    optimizer = wrap(model)
    for step in range(5):
        optimizer.zero_grad()
        for number in range(2):
            stream = torch.Generator().manual_seed(100 * step + 10 * number + group.rank())
            model(torch.randn(3, 17, generator=stream).double()).square().sum().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def bucket_sizes(group):
    """B23: any cap, under the backward or not, a parameter larger than the cap: the weights of one process."""
    found = []
    for stage in STAGES:
        for elements in (1, 100, 1000, 10**9):
            found.append(train_layers(group, partial(stage, group=group, optimizer=SGD, cap_mib=8 * elements / 2**20)))
        found.append(train_layers(group, lambda m, s=stage: NoSync(s(m, group, SGD, cap_mib=0.001))))
    for other in found[1:]:
        close(other, found[0], "weights")
    close(found[0], serial_layers(group), "weights against one process")


class NoSync:
    """Every backward is inside no_sync: the step averages."""

    def __init__(self, inner):
        self.step, self.zero_grad = inner.step, inner.zero_grad
        inner.no_sync().__enter__()


def serial_layers(group):
    model = layers()
    optimizer = SGD(model.parameters())
    for step in range(5):
        optimizer.zero_grad()
        for number in range(2):
            for rank in range(group.size()):
                stream = torch.Generator().manual_seed(100 * step + 10 * number + rank)
                (model(torch.randn(3, 17, generator=stream).double()).square().sum() / group.size()).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class Order(nn.Module):
    """Two parameters whose gradients are ready in another order on rank 1."""

    def __init__(self, swapped):
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.full((4,), x).double()) for x in (1.0, 2.0))
        self.swapped = swapped

    def forward(self):
        parts = [10 * self.a, 1000 * self.b]
        return sum(parts[::-1] if self.swapped else parts).sum()


def orders(group):
    """B13: a gradient goes to its own parameter, in whichever order they are ready."""
    for stage in STAGES:
        for cap in (0, None):
            model = Order(group.rank() == 1)
            optimizer = stage(model, group, partial(torch.optim.SGD, lr=1.0), cap_mib=cap)
            for step in range(1, 4):
                optimizer.zero_grad()
                model().backward()
                optimizer.step()
                assert torch.equal(model.a, torch.full((4,), 1.0 - 10 * step).double())
                assert torch.equal(model.b, torch.full((4,), 2.0 - 1000 * step).double())


class Twice(nn.Module):
    """A layer applied twice through activation checkpointing."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.layer = nn.Linear(8, 8).double()

    def forward(self, x, reentrant):
        for _ in range(2):
            x = x.sin() if reentrant is None else checkpoint(self.layer, x, use_reentrant=reentrant)
        return x


def checkpointing(group):
    """B11: a layer used twice by re-entrant checkpoints is right, or an error that names it."""
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(group.rank())).double().requires_grad_()
    for stage in STAGES:
        for cap in (0, None):
            model = Twice()
            stage(model, group, SGD, cap_mib=cap)
            with pytest.raises(UserError, match="layer.*re-entrant"):
                model(x, True).sum().backward()
            model = Twice()
            optimizer = stage(model, group, SGD, cap_mib=cap)
            model(x, False).sum().backward()
            optimizer.step()
            twin = Twice()
            serial = SGD(twin.parameters())
            for rank in range(group.size()):
                peer = torch.randn(3, 8, generator=torch.Generator().manual_seed(rank)).double()
                (twin(peer, False).sum() / group.size()).backward()
            serial.step()
            close(model.layer.weight, twin.layer.weight, "weight")


def exceptions(group):
    """An exception amid a backward: the next step is right."""
    for stage in STAGES:
        model, twin = layers(), layers()
        optimizer, other = (stage(m, group, SGD, cap_mib=0.001) for m in (model, twin))
        x = torch.randn(3, 17, generator=torch.Generator().manual_seed(group.rank())).double()
        handle = model[4].weight.register_hook(interrupt)
        with pytest.raises(KeyError):
            model(x).sum().backward()
        handle.remove()
        for each, stepped in ((model, optimizer), (twin, other)):
            stepped.zero_grad()
            each(x).sum().backward()
            stepped.step()
        for a, b in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.equal(a, b)


def interrupt(_):
    raise KeyError


def large_halves(group):
    """B55: the mean of two large fp16 gradients is finite; reduced in float32, tiny ones do not vanish."""
    for stage in STAGES:
        layer = nn.Linear(3, 1, bias=False).half()
        layer.weight.data.zero_()
        optimizer = stage(layer, group, partial(torch.optim.SGD, lr=2.0**-10))
        layer(torch.full((1, 3), 40000.0).half()).sum().backward()
        optimizer.step()
        assert torch.equal(layer.weight, torch.full((1, 3), -40000.0 * 2**-10).half())
        layer = nn.Linear(3, 1, bias=False).half()
        layer.weight.data.zero_()
        layer.weight.grad_dtype = torch.float32
        optimizer = stage(layer, group, partial(torch.optim.SGD, lr=2.0**20))
        layer(torch.full((1, 3), 2.0**-24).half()).sum().backward()
        optimizer.step()
        assert torch.equal(layer.weight, torch.full((1, 3), -(2.0**-4)).half())


def masters(group):
    """B53: what a bf16 model's masters do when weights are loaded, saved and resumed."""
    for stage in STAGES:
        model = layers().bfloat16()
        optimizer = stage(model, group, ADAMW, cap_mib=0.001)
        bf16_step(model, optimizer, group, 0)
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(5.0)  # as a checkpoint loaded into the model does
        bf16_step(model, optimizer, group, 1)
        assert all(((p - 5).abs() < 0.1).all() for p in model.parameters())
        kept = optimizer.state_dict()["pieces"]
        assert any((piece["state"]["master"] != piece["state"]["master"].bfloat16()).any() for piece in kept)
        with pytest.raises(UserError, match="no masters"):
            optimizer.load_state_dict([model.state_dict()])
        with pytest.raises(UserError, match="is not complete: give every rank's part"):
            optimizer.load_state_dict([{"pieces": kept[:1], "options": []}])
        stale = model(torch.ones(1, 17).bfloat16()).sum()
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            stale.backward()


def bf16_step(model, optimizer, group, step):
    """One step on this rank's data; what the model was before and the gradients go into it alone."""
    optimizer.zero_grad()
    stream = torch.Generator().manual_seed(10 * step + group.rank())
    model(torch.randn(3, 17, generator=stream).bfloat16()).square().sum().backward()
    optimizer.step()


def saved_and_resumed(group):
    """The parts of this group after three steps, as files, and the weights after three more."""
    found = {}
    for stage in STAGES:
        model = layers().bfloat16()
        optimizer = stage(model, group, ADAMW, cap_mib=0.001)
        for step in range(3):
            bf16_step(model, optimizer, group, step)
        optimizer.optimizer.param_groups[0]["lr"] = 3e-3
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        files = [None] * group.size()
        dist.all_gather_object(files, file.getvalue(), group=group)
        for step in range(3, 6):
            bf16_step(model, optimizer, group, step)
        resumed = resume(group, stage, files)
        for a, b in zip(model.parameters(), resumed.parameters(), strict=True):
            assert torch.equal(a, b), "an interrupted run is the uninterrupted one, to the last bit"
        found[stage.__name__] = files
    return found


def resume(group, stage, files, steps=range(3, 6)):
    model = layers().bfloat16()
    optimizer = stage(model, group, ADAMW, cap_mib=1)  # other buckets than those that were saved
    optimizer.load_state_dict([torch.load(io.BytesIO(file)) for file in files])
    for step in steps:
        bf16_step(model, optimizer, group, step)
    return model


def resume_elsewhere(groups, files):
    """What 3 ranks saved, read by 1, 2 and 4: the same masters, state and weights to the last bit."""
    wanted = None
    for group in groups:
        if group is None:
            continue
        for stage in STAGES:
            model = layers().bfloat16()
            optimizer = stage(model, group, ADAMW)
            optimizer.load_state_dict([torch.load(io.BytesIO(file)) for file in files])
            parts = [None] * group.size()
            dist.all_gather_object(parts, optimizer.state_dict(), group=group)
            whole = consolidate(parts)
            found = [*whole["model"].values(), *(x for s in whole["optimizer"].values() for x in s.values())]
            found += [p.detach() for p in model.parameters()]
            wanted = wanted or found
            assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
            assert optimizer.optimizer.param_groups[0]["lr"] == 3e-3


def everything():
    one, two, three, four = (mesh.subgroups([list(range(size))], "dp") for size in (1, 2, 3, 4))
    for group in (two, three):
        if group:
            for stage in STAGES:
                for make in (SGD, ADAMW):
                    train_tied(group, stage, make)
    if two:
        bucket_sizes(two)
        exceptions(two)
        orders(two)
        checkpointing(two)
        large_halves(two)
        masters(two)
    files = saved_and_resumed(three)["Stage2"] if three else None
    box = [files]
    dist.broadcast_object_list(box, src=0)
    resume_elsewhere((one, two, four), box[0])
    return True


def test_known_faults():
    assert all(ranks.run(everything, 4, timeout=100))  # rank 3 waits for most of it
