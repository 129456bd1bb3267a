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
    """The article's run: `sequences` of `length` tokens on each of `ranks` GPUs, in bf16.

    A case is a model and a stage; a model with a shorter context takes sequences as long as that.
    """

    cases: tuple[tuple[str, int], ...] = (("774M", 1), *(("tiny", stage) for stage in STAGES[:3]))
    ranks: int = 8
    sequences: int = 4
    length: int = 1024


def zero_rehearsed(cfg: ZeroRehearsedConfig) -> list[dict]:
    """A step of a model under a stage on fake tensors: live bytes by kind, after it and at its peak, and its traffic.

    The model's GELU is unfused and its attention fused, as the article's are, and its masks are left out. Stage 0 is
    data parallelism with MixedPrecision. `row` is

    - memory: a `kind` is a kind of state, `buckets` (gradients on their way, and what they are received into) or
      `activations`, all else. `resident` after the step, gradients alive, and `peak`, both also in GiB;
    - volume: a collective's calls and bytes of one rank, by dtype.

    Sends what the stages say, to nobody.
    """
    from fivedim.lab import rehearsal

    with rehearsal.rehearse(cfg.ranks) as group:
        return [row for case in cfg.cases for row in _case_rows(cfg, *case, group)]


def _case_rows(cfg: ZeroRehearsedConfig, name: str, stage: int, group: ProcessGroup) -> Iterator[dict]:
    import torch

    from fivedim import comm, train
    from fivedim.lab.meter import Live, by_kind
    from fivedim.ledger.memory import GIB
    from fivedim.model import GPT, named

    with Live() as live:
        model = GPT(named(name, fused_gelu=False))
        watch(live, model, "gradients", lambda p: [p.grad])
        forward, optimizer, _ = mixed(stage, model, group, None)
        if stage:
            watch(live, model, "buckets", lambda _: [x for bucket in optimizer.buckets for x in bucket.under_way])
        tokens = torch.zeros(cfg.sequences, min(cfg.length, model.config.context), dtype=torch.long)
        live.label("data", [tokens])
        with comm.count() as traffic:
            train.step(forward, optimizer, [(tokens, tokens)])
        for kind, tensors in optimizer.tensors().items():
            live.label(kind, tensors)
    count = sum(p.numel() for p in model.parameters())
    about = {"model": name, "stage": stage, "ranks": cfg.ranks, "parameters": count}
    resident, peak = (by_kind(found) for found in (live.resident(), live.peak()))
    for kind in (*STATE, "buckets", "activations"):
        most, kept = peak.get(kind, 0), resident.get(kind, 0)
        sizes = {"resident": kept, "peak": most, "resident_gib": kept / GIB, "peak_gib": most / GIB}
        yield {"row": "memory", **about, "kind": kind, **sizes}
    for row in traffic.rows():
        unit = (cfg.ranks - 1) / cfg.ranks * 2 * count
        sent = {key: row[key] for key in ("collective", "dtype", "calls", "bytes")}
        yield {"row": "volume", **about, **sent, "units": row["bytes"] / unit}


def watch(live: Any, model: nn.Module, kind: str, tensors: Any) -> None:
    """Whenever a gradient is complete, name `tensors(its parameter)`."""
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: live.label(kind, tensors(p)))


def saved_gib(rows: DataFrame) -> float:
    """What stage 1 keeps 1/N of and stage 0 all, less the 1/N, at the article's size: GiB."""
    dealt = _dealt(rows, "774M", 1)
    return float((dealt.resident_gib * (dealt.ranks - 1)).sum())


def saved_as_dealt(rows: DataFrame) -> float:
    """At the small size, where stage 0 is rehearsed as well: what it keeps beyond stage 1, over the same."""
    dealt = _dealt(rows, "tiny", 1)
    saved = _dealt(rows, "tiny", 0).resident.sum() - dealt.resident.sum()
    return float(saved / (dealt.resident * (dealt.ranks - 1)).sum())


def activations_differ(rows: DataFrame) -> float:
    """The largest difference of the activations at the peak between two stages, at the small size, bytes."""
    peak = rows[(rows.row == "memory") & (rows.model == "tiny") & (rows.kind == "activations")].peak
    return float(peak.max() - peak.min())


def _dealt(rows: DataFrame, model: str, stage: int) -> DataFrame:
    """The kinds of state that stage 1 deals out."""
    from fivedim.ledger.memory import DEALT

    return rows[(rows.row == "memory") & (rows.model == model) & (rows.stage == stage) & rows.kind.isin(DEALT[0])]
