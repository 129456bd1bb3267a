"""Peers: one training step by each library, and names for the storages that it keeps between steps.

A model is ours with the usual tie: its head has the embedding's parameter as its own. All train it with AdamW, in the
mixed precision that the articles ran: bf16 weights and fp32 masters (DeepSpeed, ours), fp32 weights under autocast
(DDP, ZeroRedundancyOptimizer), or fp32 shards that are gathered in bf16 and reduced in fp32 (FSDP).
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from fivedim.lab.meter import Collectives, Live
    from fivedim.model import GPT, GPTConfig

Kept = dict[str, list["Tensor"]]


class Peer(NamedTuple):
    """A library's training of one model: a step on tokens [B, T], what it keeps by kind, and its end.

    `rest` says what else it keeps, in storages that it does not show. Sends what the library does.
    """

    step: Callable[[Tensor], None]
    kept: Callable[[], Kept]
    rest: str = "unnamed"
    close: Callable[[], None] = lambda: None


class Observed(NamedTuple):
    """What c10d was given in the last step, and storages by (kind, dtype): bytes after it and at the peak.

    `storages` says how many hold the bytes after the step, `before` of which kinds they are older than the first one,
    and `rest` is the peer's.
    """

    sent: Collectives
    resident: Counter[tuple[str, str]]
    peak: Counter[tuple[str, str]]
    storages: Counter[tuple[str, str]]
    before: set[str]
    rest: str


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Libraries neither print nor warn inside. DeepSpeed is told to take the CPU and compile nothing."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "TORCHDYNAMO_DISABLE": "1"}
    logging.getLogger("DeepSpeed").setLevel(logging.CRITICAL)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def article_model(config: GPTConfig, seed: int = 0) -> GPT:
    """The model as the articles have it: head and embedding are modules with one parameter; nobody reads its masks."""
    import dataclasses

    import torch

    from fivedim.model import GPT
    from fivedim.model.attention import causal

    model = GPT(dataclasses.replace(config, tied=False, fused_gelu=False), seed)
    model.head.weight = model.tokens.weight
    for block in model.blocks:
        block.attention.core.register_buffer("mask", causal(config.context, torch.float32))
    return model


def observe(make: Callable[[GPT], Peer], model: GPT, tokens: Tensor, warmup: int) -> Observed:
    """Take `warmup` steps and one more, under the meters. Sends what the library does."""
    import gc

    from fivedim.lab.meter import Collectives, Live

    with Live() as live:
        peer = make(model)
        _label(live, peer)
        started = live.now
        for _ in range(warmup):
            peer.step(tokens)
        with Collectives() as sent:
            peer.step(tokens)
        gc.collect()
        _label(live, peer)
        alive = [record for record in live.records if record.alive(None)]
        storages = Counter((record.kind, record.dtype) for record in alive)
        before = {record.kind for record in alive if record.born <= started}
        observed = Observed(sent, live.resident(), live.peak(), storages, before, peer.rest)
    peer.close()
    return observed


def _label(live: Live, peer: Peer) -> None:
    for kind, tensors in peer.kept().items():
        live.label(kind, tensors)


def data_parallel(model: GPT) -> Peer:
    """Ours, overlapped. Sends an all-reduce a bucket, and the buffers."""
    import torch.distributed as dist

    from fivedim.data_parallel import Overlapped
    from fivedim.optim import adamw
    from fivedim.precision import MixedPrecision

    optimizer = MixedPrecision(model.parameters(), adamw)
    replica = Overlapped(model, dist.group.WORLD)

    def step(tokens: Tensor) -> None:
        _loss(replica, tokens).backward()
        optimizer.step()

    return Peer(step, lambda: {**optimizer.tensors(), "buffers": list(model.buffers())}, "gradients")


def zero(model: GPT, stage: int) -> Peer:
    """Ours, stage 1 or 2. Sends the gradients to their owners and the weights from them."""
    import torch
    import torch.distributed as dist

    from fivedim.optim import adamw
    from fivedim.zero import Stage1, Stage2

    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    return _ours(model, (Stage1, Stage2)[stage - 1](model, dist.group.WORLD, adamw))


def fully_sharded(model: GPT) -> Peer:
    """Ours, every block and the rest. Gathers in bf16, reduces in fp32."""
    import torch
    import torch.distributed as dist

    from fivedim.fsdp import FullySharded, Policy
    from fivedim.optim import adamw

    policy = Policy(param=torch.bfloat16, reduce=torch.float32)
    sharded = FullySharded(model, dist.group.WORLD, model.blocks, policy=policy)
    return _ours(sharded, adamw(sharded.parameters()))


def _ours(model: nn.Module, optimizer: Any) -> Peer:
    step = partial(_step, model, optimizer)
    return Peer(step, lambda: {**optimizer.tensors(), "buffers": list(model.buffers())})


def torch_ddp(model: GPT) -> Peer:
    """torch's DistributedDataParallel."""
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import AdamW

    replica, optimizer = DistributedDataParallel(model), AdamW(model.parameters())
    step = partial(_step, replica, optimizer, autocast=True)
    return Peer(step, lambda: _torch_kept(model, optimizer), "gradient buckets")


def zero_redundancy(model: GPT) -> Peer:
    """torch's ZeroRedundancyOptimizer around its data parallelism."""
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import AdamW

    replica, optimizer = DistributedDataParallel(model), ZeroRedundancyOptimizer(model.parameters(), AdamW)
    step = partial(_step, replica, optimizer, autocast=True)
    return Peer(step, lambda: _torch_kept(model, optimizer.optim), "gradient buckets")


def fsdp1(model: GPT) -> Peer:
    """torch's FullyShardedDataParallel, a flat parameter a block."""
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    from torch.optim import AdamW

    from fivedim.model.gpt import Block

    sharded = FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        device_id=torch.device("cpu"),
    )
    optimizer = AdamW(sharded.parameters())
    return Peer(partial(_step, sharded, optimizer), lambda: _torch_kept(sharded, optimizer))


def fsdp2(model: GPT, reshard: bool = True) -> Peer:
    """torch's fully_shard of every block and the root; `reshard` is its reshard_after_forward of the blocks."""
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.optim import AdamW

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mp_policy=policy)
    optimizer = AdamW(model.parameters())
    return Peer(partial(_step, model, optimizer), lambda: _torch_kept(model, optimizer))


def deepspeed(model: GPT, stage: int, **zero: int) -> Peer:
    """DeepSpeed with bf16 weights; `zero` are keys of its zero_optimization."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # compiled for minutes, and not c10d's
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
            "zero_optimization": {"stage": stage, **zero},
        },
    )

    def step(tokens: Tensor) -> None:
        engine.backward(_loss(engine, tokens))
        engine.step()

    return Peer(step, lambda: _deepspeed_kept(engine, stage), close=engine.destroy)


def deepspeed_defaults() -> dict[str, int]:
    """DeepSpeed's own thresholds, in elements, by the keys of its configuration."""
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    defaults = DeepSpeedZeroConfig()
    return {
        "reduce_bucket_size": defaults.reduce_bucket_size,
        "allgather_bucket_size": defaults.allgather_bucket_size,
        "stage3_prefetch_bucket_size": defaults.prefetch_bucket_size,
        "stage3_param_persistence_threshold": defaults.param_persistence_threshold,
        "stage3_max_live_parameters": defaults.max_live_parameters,
        "stage3_max_reuse_distance": defaults.max_reuse_distance,
    }


def _loss(model: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
    from fivedim.model import cross_entropy

    total, count = cross_entropy(model(tokens), tokens)
    return total / count


def _step(model: nn.Module, optimizer: Optimizer, tokens: Tensor, autocast: bool = False) -> None:
    import torch

    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = _loss(model, tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def _torch_kept(model: nn.Module, optimizer: Optimizer) -> Kept:
    return {"parameters": list(model.parameters()), "buffers": list(model.buffers()), **_state(optimizer)}


def _deepspeed_kept(engine: nn.Module, stage: int) -> Kept:
    optimizer, parameters = engine.optimizer, list(engine.module.parameters())
    kinds = {"parameters": parameters, "buffers": list(engine.module.buffers()), **_state(optimizer.optimizer)}
    if stage == 0:
        return kinds | {"master": [master for group in optimizer.fp32_groups for master in group]}
    if stage < 3:
        return kinds | {"master": optimizer.single_partition_of_fp32_groups}
    return kinds | {
        "parameters": [parameter.ds_tensor for parameter in parameters],
        "persistent parameters": [parameter for parameter in parameters if parameter.ds_persist],
        "master": optimizer.fp32_partitioned_groups_flat,
        "gradients": [optimizer.grad_partitions_flat_buffer],
        "reduce bucket": [bucket.buffer for bucket in optimizer.ipg_buckets.values()],
    }


def _state(optimizer: Optimizer) -> Kept:
    """The optimizer's tensors by its own names."""
    import torch

    kinds = defaultdict(list)
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                kinds[name].append(value)
    return dict(kinds)
