"""Article 4 at its own size: what a step of every stage keeps, needs at its peak and sends, rehearsed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fivedim.articles.a04_zero import STAGES, mixed
from fivedim.lab.config import Strict

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import nn
    from torch.distributed import ProcessGroup

STATE = ("parameters", "gradients", "master", "exp_avg", "exp_avg_sq", "step")


class ZeroRehearsedConfig(Strict):
    """The article's run: `model` on `ranks` GPUs, `sequences` of `length` tokens each, in bf16."""

    model: str = "774M"
    ranks: int = 8
    sequences: int = 4
    length: int = 1024
    stages: tuple[int, ...] = STAGES


def zero_rehearsed(cfg: ZeroRehearsedConfig) -> list[dict]:
    """One step of every stage on fake tensors: its live bytes by kind, after it and at its peak, and its traffic.

    The model's GELU is unfused and its attention fused, as the article's are, and its masks are left out. Stage 0 is
    data parallelism with MixedPrecision. `row` is

    - memory: a `kind` is a kind of state, `buckets` (gradients on their way, and what they are received into) or
      `activations`, all else. `resident` after the step, gradients alive, and `peak`, both also in GiB;
    - volume: a collective's calls and bytes of one rank, by dtype.

    Sends what the stages say, to nobody.
    """
    from fivedim.lab import rehearsal

    with rehearsal.rehearse(cfg.ranks) as group:
        return [row for stage in cfg.stages for row in _stage_rows(cfg, stage, group)]


def _stage_rows(cfg: ZeroRehearsedConfig, stage: int, group: ProcessGroup) -> Iterator[dict]:
    import torch

    from fivedim import comm, train
    from fivedim.lab.meter import Live
    from fivedim.ledger.memory import GIB
    from fivedim.model import GPT, named

    with Live() as live:
        model = GPT(named(cfg.model, fused_gelu=False))
        watch(live, model, "gradients", lambda p: [p.grad])
        forward, optimizer, _ = mixed(stage, model, group, None)
        if stage:
            watch(live, model, "buckets", lambda _: [x for bucket in optimizer.buckets for x in bucket.under_way])
        tokens = torch.zeros(cfg.sequences, cfg.length, dtype=torch.long)
        live.label("data", [tokens])
        with comm.count() as traffic:
            train.step(forward, optimizer, [(tokens, tokens)])
        for kind, tensors in optimizer.tensors().items():
            live.label(kind, tensors)
    count = sum(p.numel() for p in model.parameters())
    resident, peak = (_by_kind(found) for found in (live.resident(), live.peak()))
    for kind in (*STATE, "buckets", "activations"):
        most, kept = peak.get(kind, 0), resident.get(kind, 0)
        sizes = {"resident": kept, "peak": most, "resident_gib": kept / GIB, "peak_gib": most / GIB}
        yield {"row": "memory", "stage": stage, "parameters": count, "kind": kind, **sizes}
    for row in traffic.rows():
        unit = (cfg.ranks - 1) / cfg.ranks * 2 * count
        sent = {key: row[key] for key in ("collective", "dtype", "calls", "bytes")}
        yield {"row": "volume", "stage": stage, "parameters": count, **sent, "units": row["bytes"] / unit}


def watch(live: Any, model: nn.Module, kind: str, tensors: Any) -> None:
    """Whenever a gradient is complete, name `tensors(its parameter)`."""
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: live.label(kind, tensors(p)))


def _by_kind(found: dict[tuple[str, str], int]) -> dict[str, int]:
    kinds: dict[str, int] = {}
    for (kind, _), nbytes in found.items():
        kinds[kind] = kinds.get(kind, 0) + nbytes
    return kinds


def saved_gib(rows: DataFrame) -> float:
    """State that stage 0 keeps and stage 1 does not, GiB."""
    kept = _memory(rows)[lambda memory: memory.kind.isin(STATE)].groupby("stage").resident_gib.sum()
    return float(kept[0] - kept[1])


def activations_differ_gib(rows: DataFrame) -> float:
    """The largest difference of the activations at the peak between two stages, GiB."""
    peak = _memory(rows)[lambda memory: memory.kind == "activations"].peak_gib
    return float(peak.max() - peak.min())


def _memory(rows: DataFrame) -> DataFrame:
    return rows[rows.row == "memory"]
