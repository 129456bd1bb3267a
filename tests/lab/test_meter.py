"""The meters against sizes that are known by hand, on real and on fake tensors."""

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import functional as F

from fivedim.lab import meter, rehearsal

KINDS = pytest.mark.parametrize("tensors", [contextlib.nullcontext, rehearsal.rehearse])


@KINDS
def test_a_storage_counts_once_and_while_it_lives(tensors):
    with tensors(), meter.Live() as live:
        base = torch.zeros(5, 7)
        views = [base[1:], base.t(), base.view(torch.int32), base.add_(1), base.detach()]
        other = torch.zeros(3, dtype=torch.bfloat16)
        live.label("parameters", [*views, base])
        assert live.resident() == {("parameters", "float32"): 140, ("activations", "bfloat16"): 6}
        del base
        assert live.total == 146
        del views, other
        assert live.total == 0
        assert live.peak().total() == live.most == 146


@KINDS
def test_activations_are_what_autograd_keeps(tensors):
    with tensors(), meter.Live() as live:
        x = torch.ones(11, 3, requires_grad=True)
        live.label("inputs", [x])
        y = x.exp().tanh().sum()  # tanh keeps its output; exp keeps its own
        assert live.resident() == {("inputs", "float32"): 132, ("activations", "float32"): 132 + 132 + 4}
        y.backward()
        live.label("gradients", [x.grad])
        assert live.resident() == {
            ("inputs", "float32"): 132,
            ("gradients", "float32"): 132,
            ("activations", "float32"): 4,
        }


@KINDS
def test_the_peak_knows_what_was_named_after_it(tensors):
    with tensors(), meter.Live() as live:
        weight = torch.ones(100, requires_grad=True)
        live.label("parameters", [weight])
        (weight * 2).sum().backward()
        scratch = weight.grad.double()
        del scratch
        live.label("gradients", [weight.grad])
        assert live.peak() == {
            ("parameters", "float32"): 400,
            ("gradients", "float32"): 400,
            ("activations", "float64"): 800,
        }
        assert live.resident() == {("parameters", "float32"): 400, ("gradients", "float32"): 400}


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.alike = nn.Linear(5, 7), nn.Identity()

    def forward(self, x):
        return F.linear(self.alike(self.first(x)), self.first.weight.t())


@KINDS
def test_flop_by_module_and_pass(tensors):
    with tensors():
        model, x = Tied(), torch.ones(3, 5)
        with meter.Flop(model) as flop:
            loss = model(x).sum()
            forward = flop.by_module()
            loss.backward()
            both = flop.by_module()
    product = 2 * 3 * 5 * 7
    assert forward == {"": 0, "Tied": product, "Tied.first": product, "Tied.alike": 0}
    # the input wants no gradient, so the first layer's backward is one product and not two
    assert both - forward == {"Tied": 2 * product, "Tied.first": product}
    loss = model(x).sum() if tensors is contextlib.nullcontext else None
    assert flop.by_module() == both


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_fused_attention_is_counted_on_the_cpu(kv_heads):
    q, k, v = (torch.randn(2, heads, 5, 4, requires_grad=True) for heads in (2, kv_heads, kv_heads))
    with meter.Flop(nn.Identity()) as flop:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=kv_heads == 1)
        forward = flop.by_module()[""]
        out.sum().backward()
        assert (forward, flop.by_module()[""]) == (2 * product_of(q), (2 + 5) * product_of(q))


def product_of(q):
    batch, heads, length, width = q.shape
    return 2 * batch * heads * length * length * width


@KINDS
def test_a_resized_storage_counts_what_it_has(tensors):
    with tensors(), meter.Live() as live:
        gathered = torch.zeros(100)
        live.label("parameters", [gathered])
        gathered.untyped_storage().resize_(0)
        assert live.total == 0
        other = torch.zeros(60)
        gathered.untyped_storage().resize_(400)
        live.label("gathered", [gathered])
        assert live.resident() == {("gathered", "float32"): 400, ("activations", "float32"): 240}
        del gathered, other
        assert live.total == 0
        assert live.peak() == {("gathered", "float32"): 400, ("activations", "float32"): 240}
    torch.zeros(3).untyped_storage().resize_(0)
    assert live.total == 0


def test_a_dtensor_counts_as_its_part():
    with rehearsal.fake_group(4), meter.Live() as live:
        mesh = init_device_mesh("cpu", (4,))
        whole = distribute_tensor(torch.zeros(8, 5), mesh, [Shard(0)], src_data_rank=None)
        doubled = whole * 2
        live.label("parameters", [doubled, torch.zeros(3, device="meta")])
        assert live.resident()["parameters", "float32"] == 2 * 5 * 4


def test_collectives_count_the_whole_tensor_by_dtype():
    with rehearsal.fake_group(4) as group, meter.Collectives() as sent:
        dist.all_gather_single(*(torch.zeros(size, dtype=torch.bfloat16) for size in (12, 3)), group=group)
        dist.reduce_scatter_single(torch.zeros(3), torch.zeros(12), group=group)
    assert sent.typed == {("_allgather_base_", "bfloat16"): 24, ("_reduce_scatter_base_", "float32"): 48}
    assert sent.bytes == {"_allgather_base_": 24, "_reduce_scatter_base_": 48}
