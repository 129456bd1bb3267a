"""Article 3, several microbatches a step: what no_sync saves, which buffers travel, and where gradients are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fivedim.articles.a03_data_parallel import SmallConfig, miss

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor, nn
    from torch.distributed import ProcessGroup

WARMUP = 2  # steps: torch's first has other buckets, its second tells the other ranks about the new ones


class AccumulationConfig(SmallConfig):
    """A step is `microbatches` of `sequences` x `length` tokens on each rank.

    Buffers are `mask_layers` causal masks of `mask_context` x `mask_context` fp32, the article's.
    """

    microbatches: int = 4
    sequences: int = 3
    length: int = 5
    cap_mib: float = 0.003
    mask_layers: int = 12
    mask_context: int = 1024


def accumulation(cfg: AccumulationConfig) -> list[dict]:
    """Ours and torch's DDP side by side, counted in one step after others by c10d's operations and live storages.

    `implementation` is ours, or torch's with gradients as views of its buckets or as copies; `synchronized` is all
    microbatches or the last alone; bytes are of the tensors given to c10d. `row` is

    - gradient: all-reduces of a step, and the largest difference of a gradient, in float64, from the mean over all
      ranks' microbatches in one process;
    - buffer: broadcasts of a step of a model that keeps its masks, and the bytes of all its buffers;
    - kept: after an unsynchronized microbatch and the synchronized one that follows, live bytes that are neither
      parameter nor buffer, and their ratio to the gradients'. Ours keeps one element a gradient more.

    Sends what the wrappers say.
    """
    import torch.distributed as dist

    group, wrap = dist.group.WORLD, _wrappers(cfg.cap_mib)
    pair = ("ours", "torch, views")
    return [
        *(_gradient_row(cfg, name, wrap[name], which, group) for name in pair for which in ("all", "last")),
        *(
            _buffer_row(cfg, name, wrap[name], microbatches, which, group)
            for name in pair
            for microbatches, which in ((1, "all"), (cfg.microbatches, "all"), (cfg.microbatches, "last"))
        ),
        *(row for name in wrap for row in _kept_rows(cfg, name, wrap[name], group)),
    ]


def _wrappers(cap_mib: float) -> dict[str, Callable[[nn.Module, ProcessGroup], nn.Module]]:
    from torch.nn.parallel import DistributedDataParallel

    from fivedim.data_parallel import Overlapped

    def torchs(views: bool) -> Callable:
        return lambda module, group: DistributedDataParallel(
            module, process_group=group, bucket_cap_mb=cap_mib, gradient_as_bucket_view=views
        )

    ours = lambda module, group: Overlapped(module, group, cap_mib)  # noqa: E731
    return {"ours": ours, "torch, views": torchs(True), "torch, copies": torchs(False)}


def accumulate(replica: nn.Module, microbatches: list[Tensor], synchronized: str) -> None:
    """Forward and backward of every microbatch; the last is synchronized, the others if `synchronized` is all."""
    from contextlib import nullcontext

    for number, tokens in enumerate(microbatches):
        last = number == len(microbatches) - 1
        with nullcontext() if last or synchronized == "all" else replica.no_sync():
            replica(tokens).square().sum().backward()


def _gradient_row(cfg: AccumulationConfig, name: str, wrap: Callable, which: str, group: ProcessGroup) -> dict:
    import torch

    from fivedim import comm
    from fivedim.lab.meter import Collectives
    from fivedim.model import GPT

    model, twin = (GPT(cfg.shape(), cfg.seed).double() for _ in range(2))
    replica, batches = wrap(model, group), [_tokens(cfg, position) for position in range(group.size())]
    for _ in range(WARMUP + 1):
        model.zero_grad()
        with Collectives() as sent:
            accumulate(replica, batches[group.rank()], which)
    for tokens in (tokens for batch in batches for tokens in batch):
        (twin(tokens).square().sum() / group.size()).backward()
    off = max(miss(a.grad, b.grad) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    return {
        **{"row": "gradient", "implementation": name, "microbatches": cfg.microbatches, "synchronized": which},
        **{"collectives": sent.calls["allreduce_"], "bytes": sent.bytes["allreduce_"]},
        "gradient_miss": comm.all_reduce_max(torch.tensor(off, dtype=torch.float64), group).item(),
    }


def _tokens(cfg: AccumulationConfig, position: int) -> list[Tensor]:
    """A rank's microbatches, each [B, T]."""
    import torch

    stream = torch.Generator().manual_seed(1000 * cfg.seed + position)
    shape = (cfg.microbatches, cfg.sequences, cfg.length)
    return list(torch.randint(cfg.vocabulary, shape, generator=stream))


def _buffer_row(
    cfg: AccumulationConfig, name: str, wrap: Callable, microbatches: int, which: str, group: ProcessGroup
) -> dict:
    import torch

    from fivedim.lab.meter import Collectives
    from fivedim.model import GPT

    changes = {"layers": cfg.mask_layers, "context": cfg.mask_context}
    model = GPT(cfg.shape(fused_attention=False, mask_buffers=True, **changes), cfg.seed)
    replica, tokens = wrap(model, group), torch.zeros(1, cfg.length, dtype=torch.long)
    for _ in range(WARMUP):
        accumulate(replica, [tokens], "all")
    with Collectives() as sent:
        accumulate(replica, [tokens] * microbatches, which)
    return {
        **{"row": "buffer", "implementation": name, "microbatches": microbatches, "synchronized": which},
        **{"collectives": sent.calls["broadcast_"], "bytes": sent.bytes["broadcast_"]},
        "buffer_bytes": sum(x.nbytes for x in model.buffers()),
    }


def _kept_rows(cfg: AccumulationConfig, name: str, wrap: Callable, group: ProcessGroup) -> Iterator[dict]:
    import torch

    from fivedim.lab.meter import UNLABELLED, Live
    from fivedim.model import GPT

    model, tokens = GPT(cfg.shape(), cfg.seed), torch.zeros(1, cfg.length, dtype=torch.long)
    size = sum(p.nbytes for p in model.parameters())
    with Live() as live:
        live.label("state", [*model.parameters(), *model.buffers(), tokens])
        replica = wrap(model, group)
        for _ in range(WARMUP):
            accumulate(replica, [tokens], "all")
        model.zero_grad()
        for after in ("unsynchronized", "synchronized"):
            with replica.no_sync() if after == "unsynchronized" else torch.enable_grad():
                replica(tokens).square().sum().backward()
            kept = sum(n for (kind, _), n in live.resident().items() if kind == UNLABELLED)
            about = {"row": "kept", "implementation": name, "after": after}
            yield {**about, "bytes": kept, "gradient_bytes": size, "copies": kept / size}


def share_of_collectives(rows: DataFrame) -> float:
    """Our all-reduces with the last microbatch synchronized, as a share of those with all of them."""
    return _share(rows, "ours", "collectives")


def share_of_bytes(rows: DataFrame) -> float:
    """As `share_of_collectives`, their bytes."""
    return _share(rows, "ours", "bytes")


def torchs_share_of_collectives(rows: DataFrame) -> float:
    """As `share_of_collectives`, torch's."""
    return _share(rows, "torch, views", "collectives")


def _share(rows: DataFrame, implementation: str, column: str) -> float:
    found = rows[(rows.row == "gradient") & (rows.implementation == implementation)].set_index("synchronized")[column]
    return float(found["last"] / found["all"])


def copies_saved(rows: DataFrame) -> float:
    """Copies of the gradients that torch does without where they are views, after a synchronized microbatch."""
    found = rows[rows.after == "synchronized"].set_index("implementation").copies
    return float(found["torch, copies"] - found["torch, views"])
