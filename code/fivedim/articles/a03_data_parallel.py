"""Article 3, From DP to DDP: that data parallelism is the large batch, and what it sends and keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fivedim.lab.config import Strict

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed import ProcessGroup

    from fivedim.model import GPTConfig
    from fivedim.train import Batch

GIVEN = (None, 1.0, 10.0, 25.0, 100.0, 250.0, 500.0)  # MiB; None is torch's default: the first bucket's cap is 1


class SmallConfig(Strict):
    """A small GPT with a tied embedding, its sizes odd, and the seed of everything."""

    vocabulary: int = 11
    context: int = 8
    layers: int = 2
    heads: int = 2
    width: int = 14
    seed: int = 0

    def shape(self, **changes) -> GPTConfig:
        """The model's config."""
        from fivedim.model import GPTConfig

        return GPTConfig(**(self.model_dump(include=set(SmallConfig.model_fields) - {"seed"}) | changes))


class DataParallelMatchConfig(SmallConfig):
    """`steps` steps; a rank's batch has 2 sequences, but in the last step `last`, by its position in the group."""

    steps: int = 3
    length: int = 5
    last: tuple[int, ...] = (3, 1, 2, 5)
    cap_mib: float = 0.003


def data_parallel_match(cfg: DataParallelMatchConfig) -> list[dict]:
    """N ranks against one process on the whole batch, in float64, each rank's first weights its own.

    A row is one N, wrapper, optimizer and `mean`: whether a rank's loss is divided by its share of the whole batch, or
    by its own part, as if the parts were equal (the last step's are not). The largest differences of a gradient and a
    weight in any step, how far the weight that moved least moved, and whether all ranks have the same bits. Sends what
    the wrappers say.
    """
    import torch.distributed as dist

    from fivedim import mesh

    ranks, rows = range(dist.get_world_size()), []
    for size in (rank + 1 for rank in ranks):
        if group := mesh.subgroups([list(ranks[:size])], "dp"):
            rows += [_match_row(cfg, group, *case) for case in _match_cases()]
    return rows


def _match_cases() -> Iterator[tuple[str, str, str]]:
    yield from ((wrapper, "SGD", "whole batch") for wrapper in ("Naive", "Bucketed", "Overlapped"))
    yield from (("Overlapped", "AdamW", "whole batch"), ("Overlapped", "SGD", "own part"))


def _match_row(cfg: DataParallelMatchConfig, group: ProcessGroup, wrapper: str, optimizer: str, mean: str) -> dict:
    import torch

    from fivedim import comm, data_parallel, optim, train
    from fivedim.model import GPT

    model, twin = (GPT(cfg.shape(), seed).double() for seed in (cfg.seed + group.rank(), cfg.seed))
    first = [p.detach().clone() for p in twin.parameters()]
    caps = () if wrapper == "Naive" else (cfg.cap_mib,)
    replica = getattr(data_parallel, wrapper)(model, group, *caps)
    make = {"SGD": lambda p: optim.sgd(p, 0.5, momentum=0.9), "AdamW": optim.adamw}[optimizer]
    ours, serial, misses = make(model.parameters()), make(twin.parameters()), []
    for step in range(cfg.steps):
        batches = [_batch(cfg, position, step) for position in range(group.size())]
        own = batches[group.rank() : group.rank() + 1]
        share = data_parallel.mean(train.valid_tokens(own), group) if mean == "whole batch" else None
        train.step(replica, ours, own, share)
        train.step(twin, serial, batches)
        pairs = list(zip(model.parameters(), twin.parameters(), strict=True))
        misses.append([max(miss(a.grad, b.grad) for a, b in pairs), max(miss(a, b) for a, b in pairs)])
    gradient, weight = comm.all_reduce_max(torch.tensor(misses, dtype=torch.float64), group).amax(0).tolist()
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return {
        **{"ranks": group.size(), "wrapper": wrapper, "optimizer": optimizer, "mean": mean, "steps": cfg.steps},
        **{"buckets": len(replica.buckets), "gradient_miss": gradient, "weight_miss": weight},
        "moved": min(miss(p.detach(), before) for p, before in zip(model.parameters(), first, strict=True)),
        "same_bits": torch.equal(comm.all_reduce_max(weights, group), -comm.all_reduce_max(-weights, group)),
    }


def _batch(cfg: DataParallelMatchConfig, position: int, step: int) -> Batch:
    import torch

    sequences = cfg.last[position] if step == cfg.steps - 1 else 2
    stream = torch.Generator().manual_seed(1000 * cfg.seed + 10 * step + position)
    tokens, targets = torch.randint(cfg.vocabulary, (2, sequences, cfg.length), generator=stream)
    return tokens, targets


def miss(found: Tensor, wanted: Tensor) -> float:
    """The largest difference of two elements."""
    return (found - wanted).abs().max().item()


class BucketListsConfig(Strict):
    """`model` at `ranks`; torch's DDP runs for the caps in `observed` (MiB), None being its default."""

    model: str = "124M"
    ranks: int = 8
    sequences: int = 12
    length: int = 1024
    caps: tuple[float | None, ...] = GIVEN
    observed: tuple[float | None, ...] = (None, 25.0)


def bucket_lists(cfg: BucketListsConfig) -> list[dict]:
    """Which gradients travel together in a step of ours on fake tensors, and in one of torch's DDP.

    torch's runs on real tensors of one token, since its C++ reads data, and tells its buckets to a communication hook;
    it puts all gradients of its first step into one bucket and then rebuilds in the order in which they were ready. For
    caps that are not `observed` its own function cuts the order that was seen. `row` is step (with the number of
    all-reduces) or bucket; a cap of 0 is torch's default. Sends nothing: the group is a fake one.
    """
    from fivedim.lab import rehearsal

    with rehearsal.rehearse(cfg.ranks) as group:
        ours = {cap: _our_buckets(cfg, cap, group) for cap in cfg.caps}
    with rehearsal.fake_group(cfg.ranks) as group:
        model = _empty(cfg.model)
        observed = {cap: _torch_buckets(model, cap, group) for cap in cfg.observed}
    sizes = {name: p.nbytes for name, p in model.named_parameters()}
    ready = [name for bucket in observed[cfg.observed[0]]["later"] for name in bucket]
    rows = []
    for cap, (buckets, sent) in ours.items():
        known = observed.get(cap) or {"later": _torch_rule(ready, sizes, cap)}
        source = "torch, observed" if cap in observed else "torch, its rule"
        rows += _list_rows({"source": "ours", "cap_mib": cap or 0.0, "step": "any"}, buckets, sent, buckets, sizes)
        for step, theirs in known.items():
            about = {"source": source, "cap_mib": cap or 0.0, "step": step}
            rows += _list_rows(about, theirs, len(theirs), buckets, sizes)
    return rows


def _our_buckets(cfg: BucketListsConfig, cap: float | None, group: ProcessGroup) -> tuple[list[list[str]], int]:
    """Our buckets, and how many all-reduces one step sent."""
    import torch

    from fivedim import comm
    from fivedim.data_parallel import Overlapped
    from fivedim.model import GPT, named

    replica = Overlapped(GPT(named(cfg.model, fused_attention=False)), group, cap)
    with comm.count() as traffic:
        replica(torch.zeros(cfg.sequences, cfg.length, dtype=torch.long)).sum().backward()
    return [list(bucket.parameters) for bucket in replica.buckets], traffic.calls(collective="all_reduce")


def _empty(name: str) -> nn.Module:
    """The model with all weights 0: the buckets do not depend on them."""
    import torch

    from fivedim.model import GPT, named

    with torch.device("meta"):
        model = GPT(named(name, fused_attention=False))
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.zero_()
    return model


def _torch_buckets(model: nn.Module, cap: float | None, group: ProcessGroup) -> dict[str, list[list[str]]]:
    """The buckets of torch's first step and of its second, in the order in which they leave."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    names, left = {p: name for name, p in model.named_parameters()}, []

    def hook(_, bucket):
        left.append([names[p] for p in bucket.parameters()])
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    replica = DistributedDataParallel(
        model, process_group=group, bucket_cap_mb=cap, init_sync=False, gradient_as_bucket_view=True
    )
    replica.register_comm_hook(None, hook)
    steps = {}
    for step in ("first", "later"):
        replica(torch.zeros(1, 1, dtype=torch.long)).sum().backward()
        model.zero_grad()
        steps[step] = left[:]
        left.clear()
    return steps


def _torch_rule(ready: list[str], sizes: dict[str, int], cap: float | None) -> list[list[str]]:
    """What torch's own function makes of the gradients in the order in which they are ready."""
    import torch
    import torch.distributed as dist

    from fivedim.ledger.buckets import caps

    tensors = [torch.empty(sizes[name], dtype=torch.uint8, device="meta") for name in ready]
    cut, _ = dist._compute_bucket_assignment_by_size(
        tensors, list(caps(cap)), [False] * len(ready), list(range(len(ready)))
    )
    return [[ready[index] for index in bucket] for bucket in cut]


def _list_rows(
    about: dict, buckets: list[list[str]], sent: int, ours: list[list[str]], sizes: dict[str, int]
) -> Iterator[dict]:
    filled = [sum(sizes[name] for name in bucket) for bucket in buckets]
    yield {
        **{"row": "step", **about, "buckets": len(buckets), "all_reduces": sent},
        **{"tensors": sum(map(len, buckets)), "bytes": sum(filled), "largest": max(filled)},
        "same_as_ours": [set(bucket) for bucket in buckets] == [set(bucket) for bucket in ours],
    }
    for index, (bucket, size) in enumerate(zip(buckets, filled, strict=True)):
        yield {
            **{"row": "bucket", **about, "bucket": index, "tensors": len(bucket), "bytes": size},
            **{"first": bucket[0], "last": bucket[-1]},
        }
