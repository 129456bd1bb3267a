"""Article 5 at its own size: what data parallelism and its fully sharded form keep, need at their peak and send."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from fivedim.lab.config import Strict

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor, nn
    from torch.distributed import ProcessGroup

    from fivedim.lab.meter import Live

CASES = {"DDP": "ddp", "reshard": "fsdp2", "no reshard": "fsdp2-noreshard"}  # and its name in the reported table
STATE = ("parameters", "gradients", "exp_avg", "exp_avg_sq")
KINDS = (*STATE, "step", "buffers", "gathered", "activations")


class FsdpMemoryConfig(Strict):
    """The article's run: `model` on `ranks` GPUs, `sequences` of `length` tokens each, a causal mask in each layer."""

    model: str = "774M"
    layers: int = 36
    ranks: int = 8
    sequences: int = 4
    length: int = 1024


def fsdp_memory_rehearsed(cfg: FsdpMemoryConfig) -> list[dict]:
    """One step of each case on fake tensors: live bytes of one rank, at the peak and after it, and what it sends.

    A `case` is our overlapped data parallelism in fp32, or our FullySharded, a unit a block, with bf16 parameters, fp32
    gradients and with or without reshard; AdamW in fp32. The model's GELU is unfused and its attention fused, as the
    article's are, and every layer keeps a mask that nothing reads. `row` is

    - memory: of a `kind` (`gathered`: whole parameters, or on their way; `activations`: all else), or of everything,
      `resident` when the step is over and the gradients are dropped, and `peak`, both also in GiB and a parameter; of
      everything also as reported;
    - volume: a collective's calls and bytes of one rank, by dtype, and all but the buffers' (`everything`).

    Sends what the wrappers say, to nobody.
    """
    from fivedim.lab import rehearsal

    with rehearsal.rehearse(cfg.ranks) as group:
        return [row for case in CASES for row in _case_rows(cfg, case, group)]


def _case_rows(cfg: FsdpMemoryConfig, case: str, group: ProcessGroup) -> Iterator[dict]:
    import torch

    from fivedim import comm, train
    from fivedim.lab.meter import Live, by_kind
    from fivedim.model import GPT, named
    from fivedim.optim import adamw

    with Live() as live:
        model = GPT(named(cfg.model, layers=cfg.layers, fused_gelu=False))
        count = sum(p.numel() for p in model.parameters())
        for block in model.blocks:
            block.attention.register_buffer("mask", torch.ones(cfg.length, cfg.length))
        wrapped = _wrap(case, model, group, live)
        optimizer, tokens = adamw(wrapped.parameters()), torch.zeros(cfg.sequences, cfg.length, dtype=torch.long)
        with comm.count() as traffic:
            train.step(wrapped, optimizer, [(tokens, tokens)])
        optimizer.zero_grad()
        live.label("buffers", model.buffers())
        for kind, tensors in optimizer.tensors().items():
            live.label(kind, tensors)
    resident, peak = (by_kind(found) for found in (live.resident(), live.peak()))
    for kinds in (resident, peak):
        kinds["everything"] = kinds.total()
    for kind in (*KINDS, "everything"):
        row = {"row": "memory", "case": case, "kind": kind, "parameters": count, **_sizes(kind, resident, peak, count)}
        yield row | (_reported(case) if kind == "everything" else {})
    everything = traffic.bytes() - traffic.bytes(collective="broadcast")
    rows = [
        *traffic.rows(),
        {"collective": "everything", "dtype": "any", "calls": traffic.calls(), "bytes": everything},
    ]
    for row in rows:
        sent = {key: row[key] for key in ("collective", "dtype", "calls", "bytes")}
        yield {"row": "volume", "case": case, "parameters": count, **sent, "gb": row["bytes"] / 1e9}


def _wrap(case: str, model: nn.Module, group: ProcessGroup, live: Live) -> nn.Module:
    """The model of a case, whose gradients and gathered parameters the meter knows by name."""
    import torch

    from fivedim.data_parallel import Overlapped
    from fivedim.fsdp import FullySharded, Policy

    if case == "DDP":
        replica = Overlapped(model, group)
        live.label("gradients", [bucket.flat for bucket in replica.buckets])
        return replica
    policy = Policy(param=torch.bfloat16, reduce=torch.float32)
    hear = _labels(live)
    return FullySharded(model, group, model.blocks, policy=policy, reshard=case == "reshard", watch=hear)


def _labels(live: Live) -> Callable[[str, str, Sequence[Tensor]], None]:
    """A watch that tells the meter what the tensors of an event are."""
    kinds = {"gather": "gathered", "forward": "gathered", "backward": "gathered", "reduce": "gradients"}
    return lambda event, unit, tensors: live.label(kinds[event], tensors) if event in kinds else None


def _reported(case: str) -> dict[str, float]:
    from fivedim.lab.config import find_root
    from fivedim.lab.cost_model import reported

    table = reported(find_root() / "configs/reported/fsdp.csv")
    row = next(row for row in table if row["mode"] == CASES[case])
    return {"reported_resident_gib": float(row["resident_GiB"]), "reported_peak_gib": float(row["peak_GiB"])}


def _sizes(kind: str, resident: dict[str, int], peak: dict[str, int], count: int) -> dict:
    from fivedim.ledger.memory import GIB

    kept, most = resident.get(kind, 0), peak.get(kind, 0)
    return {
        **{"resident": kept, "resident_gib": kept / GIB, "resident_per_parameter": kept / count},
        **{"peak": most, "peak_gib": most / GIB, "peak_per_parameter": most / count},
    }


def ddp_over_fsdp(rows: DataFrame) -> float:
    """DDP's resident bytes over FSDP's."""
    kept = _memory(rows, "everything").resident
    return float(kept["DDP"] / kept["reshard"])


def state_over_state(rows: DataFrame) -> float:
    """The same of parameters, gradients and moments alone."""
    kept = _state(rows)
    return float(kept["DDP"] / kept["reshard"])


def state_of_ddp(rows: DataFrame) -> float:
    """Parameters, gradients and moments that DDP keeps, bytes a parameter."""
    return float(_state(rows)["DDP"])


def state_of_fsdp(rows: DataFrame) -> float:
    """Parameters, gradients and moments that FSDP keeps between steps, bytes a parameter of the whole model."""
    return float(_state(rows)["reshard"])


def resident_saved_gib(rows: DataFrame) -> float:
    """Resident bytes without reshard, less those with it, GiB."""
    kept = _memory(rows, "everything").resident_gib
    return float(kept["no reshard"] - kept["reshard"])


def peak_saved_gib(rows: DataFrame) -> float:
    """The peak without reshard, less the one with it, GiB."""
    most = _memory(rows, "everything").peak_gib
    return float(most["no reshard"] - most["reshard"])


def half_model_gib(rows: DataFrame) -> float:
    """The parameters in bf16, GiB."""
    from fivedim.ledger.memory import GIB

    return float(2 * rows.parameters.iloc[0] / GIB)


def volume_ratio(rows: DataFrame) -> float:
    """What DDP sends, but for buffers, over what FSDP sends."""
    sent = rows[(rows.row == "volume") & (rows.collective == "everything")].set_index("case").bytes
    return float(sent["DDP"] / sent["reshard"])


def _memory(rows: DataFrame, kind: str) -> DataFrame:
    return rows[(rows.row == "memory") & (rows.kind == kind)].set_index("case")


def _state(rows: DataFrame) -> DataFrame:
    return rows[(rows.row == "memory") & rows.kind.isin(STATE)].groupby("case").resident_per_parameter.sum()
