"""Article 4, ZeRO: that a dealt-out optimizer takes data parallelism's steps, and what it keeps and sends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from fivedim.articles.a03_data_parallel import SmallConfig, miss
from fivedim.lab.config import Strict

if TYPE_CHECKING:
    from collections import Counter

    from torch import Tensor, nn
    from torch.distributed import ProcessGroup

    from fivedim.fsdp import FullySharded

STATE = ("parameters", "gradients", "master", "exp_avg", "exp_avg_sq")
STAGES = (0, 1, 2, 3)


class ZeroMatchConfig(SmallConfig):
    """`steps` steps of `sequences` x `length` tokens a rank; clipped to `max_norm` where a row says so."""

    steps: int = 3
    sequences: int = 2
    length: int = 5
    optimizers: tuple[str, ...] = ("SGD", "AdamW", "SGD, clipped", "AdamW, clipped")
    max_norm: float = 0.1
    cap_mib: float = 0.003


def zero_match(cfg: ZeroMatchConfig) -> list[dict]:
    """Every stage beside data parallelism (stage 0) and one process on the whole batch, in float64.

    A row is one N, stage and optimizer; a rank's first weights are its own. The largest differences of a weight, after
    any step, from one process and from data parallelism, and of the norm that was clipped to; how far the
    64 weights that moved least moved; whether all ranks have the same bits. Sends what the wrappers say.
    """
    import torch.distributed as dist

    from fivedim import mesh

    ranks, rows = range(dist.get_world_size()), []
    for size in (rank + 1 for rank in ranks):
        if group := mesh.subgroups([list(ranks[:size])], "dp"):
            for name in cfg.optimizers:
                rows += _match_rows(cfg, group, name)
    return rows


class Trained:
    """A model and its optimizer, which clips first if `max_norm` is above 0; `norm` is what it then found."""

    def __init__(self, model: nn.Module, forward: Callable, optimizer: Any, clip_: Callable, max_norm: float):
        self.model, self.forward, self.optimizer = model, forward, optimizer
        self.clip_, self.max_norm, self.norm = clip_, max_norm, 0.0
        self.zero_grad = optimizer.zero_grad

    def step(self) -> None:
        """Clip, then step."""
        if self.max_norm:
            self.norm = float(self.clip_(self.max_norm))
        self.optimizer.step()


class FullyShardedOptimizer:
    """Stage 3's: an optimizer of the shards of a FullySharded model, as the other stages are to be used."""

    def __init__(self, sharded: FullySharded, optimizer: Any):
        self.sharded, self.optimizer = sharded, optimizer
        self.step, self.zero_grad = optimizer.step, sharded.zero_grad

    def clip_(self, max_norm: float, order: float = 2.0) -> Tensor:
        """Clip to a global norm; returns it as it was."""
        from fivedim.comm.norm import clip_

        gradients = [p.grad for p in self.sharded.parameters() if p.grad is not None]
        return clip_({self.sharded.group: gradients}, max_norm, order)

    def tensors(self) -> dict[str, list[Tensor]]:
        """All that is kept between steps, by kind; the shards, in float32 at least, are their own masters."""
        kinds = self.optimizer.tensors()
        return kinds | {"parameters": [], "master": kinds["parameters"]}


def trained(stage: int | None, model: nn.Module, group: ProcessGroup, make: Callable, max_norm: float, cap: float):
    """`model` under a stage, 0 being data parallelism and None one process; `make` gives an optimizer of tensors."""
    import torch

    from fivedim import comm, zero
    from fivedim.data_parallel import Overlapped
    from fivedim.fsdp import FullySharded

    if stage in (1, 2):
        ours = (zero.Stage1, zero.Stage2)[stage - 1](model, group, make, cap_mib=cap)
        return Trained(model, model, ours, ours.clip_, max_norm)
    if stage == 3:
        sharded = FullySharded(model, group, model.blocks)
        ours = FullyShardedOptimizer(sharded, make(sharded.parameters()))
        return Trained(model, sharded, ours, ours.clip_, max_norm)
    if stage is None:
        clip_ = lambda most: torch.nn.utils.clip_grad_norm_(model.parameters(), most)  # noqa: E731
        return Trained(model, model, make(model.parameters()), clip_, max_norm)
    clip_ = lambda most: comm.norm.clip_({None: [p.grad for p in model.parameters()]}, most)  # noqa: E731
    return Trained(model, Overlapped(model, group, cap), make(model.parameters()), clip_, max_norm)


def _match_rows(cfg: ZeroMatchConfig, group: ProcessGroup, name: str) -> list[dict]:
    from functools import partial

    from fivedim import optim, train
    from fivedim.model import GPT

    optimizer, _, clipped = name.partition(", ")
    make = {"SGD": partial(optim.sgd, rate=0.5, momentum=0.9), "AdamW": optim.adamw}[optimizer]

    def build(stage: int | None) -> Trained:
        seed = cfg.seed + (0 if stage is None else group.rank())
        return trained(
            stage, GPT(cfg.shape(), seed).double(), group, make, cfg.max_norm if clipped else 0.0, cfg.cap_mib
        )

    stages, twin = {stage: build(stage) for stage in STAGES}, build(None)
    first = _weights(twin)
    worst = {stage: [0.0, 0.0, 0.0] for stage in STAGES}
    for step in range(cfg.steps):
        batches = [_batch(cfg, position, step) for position in range(group.size())]
        train.step(twin.forward, twin, batches)
        for ours in stages.values():
            train.step(ours.forward, ours, batches[group.rank() :][:1])
        for stage, ours in stages.items():
            weights = _weights(ours)
            found = miss(weights, _weights(twin)), miss(weights, _weights(stages[0]))
            worst[stage] = [max(pair) for pair in zip(worst[stage], (*found, abs(ours.norm - twin.norm)), strict=True)]
    return [_match_row(group, name, cfg.steps, stage, worst[stage], stages[stage], first) for stage in STAGES]


def _match_row(
    group: ProcessGroup, name: str, steps: int, stage: int, worst: list[float], ours: Trained, first: Tensor
) -> dict:
    import torch

    from fivedim import comm

    weights = _weights(ours)
    weight, dp, norm = comm.all_reduce_max(torch.tensor(worst, dtype=torch.float64), group).tolist()
    moved = [miss(*pair) for pair in zip(weights.split(64), first.split(64), strict=True)]
    return {
        **{"ranks": group.size(), "stage": stage, "optimizer": name, "steps": steps},
        **{"weight_miss": weight, "data_parallel_miss": dp, "norm_miss": norm, "moved": min(moved)},
        "same_bits": torch.equal(comm.all_reduce_max(weights, group), -comm.all_reduce_max(-weights, group)),
    }


def _weights(ours: Trained) -> Tensor:
    """All weights, gathered if they are sharded."""
    import torch

    from fivedim.fsdp import FullySharded, checkpoint

    whole = checkpoint.state_dict(ours.forward) if isinstance(ours.forward, FullySharded) else ours.model.state_dict()
    return torch.cat([whole[name].flatten() for name in sorted(whole)])


def _batch(cfg: ZeroMatchConfig, position: int, step: int) -> tuple[Tensor, Tensor]:
    import torch

    stream = torch.Generator().manual_seed(1000 * cfg.seed + 10 * step + position)
    return tuple(torch.randint(cfg.vocabulary, (2, cfg.sequences, cfg.length), generator=stream))


class ZeroLedgerConfig(Strict):
    """A small GPT whose tensors divide by 8, under groups of `group_sizes` ranks."""

    width: int = 64
    vocabulary: int = 256
    context: int = 16
    layers: int = 1
    heads: int = 4
    group_sizes: tuple[int, ...] = (1, 2, 4, 8)
    orders: tuple[str, ...] = ("2", "1", "inf")
    cap_mib: float = 0.05
    seed: int = 0


def zero_ledger(cfg: ZeroLedgerConfig) -> list[dict]:
    """Live bytes after a step with bf16 weights and gradients, fp32 masters and AdamW, and what the step sent.

    `ranks` and `stage`, 0 being data parallelism with MixedPrecision and 3 FullySharded, whose shards and their
    gradients are fp32 and which keeps no bf16. `row` is

    - state: one kind's live bytes on the rank that has most and least of it, the ledger's, and their difference;
    - apart: live bytes that no ledger counts: AdamW's step counters, and stage 0's flags that say who has a gradient;
    - volume: bytes handed to send in one step, in units of (N-1)/N of the bf16 gradients, by the rank that sends most;
      `apart` are the stages' flags, in another dtype, and `collectives` the calls in bf16;
    - clipping: what clipping to a global norm adds, by the order of the norm: c10d's operations, and the bytes of the
      tensors given to them.

    Sends what the stages say.
    """
    import torch.distributed as dist

    from fivedim import mesh

    ranks, rows = list(range(dist.get_world_size())), []
    for size in cfg.group_sizes:
        if group := mesh.subgroups([ranks[:size]], "dp"):
            for stage in STAGES:
                rows += _ledger_rows(cfg, group, stage)
    return rows


def mixed(stage: int, model: nn.Module, group: ProcessGroup, cap_mib: float | None) -> tuple[Callable, Any, int]:
    """`model` in bf16 under a stage with AdamW: what to call, what steps it, and bytes that say who has a gradient."""
    import torch

    from fivedim import optim, zero
    from fivedim.data_parallel import Overlapped
    from fivedim.fsdp import FullySharded, Policy
    from fivedim.precision import MixedPrecision

    if stage == 3:
        sharded = FullySharded(model, group, model.blocks, policy=Policy(torch.bfloat16))
        return sharded, FullyShardedOptimizer(sharded, optim.adamw(sharded.parameters())), 0
    if stage:
        for parameter in model.parameters():
            parameter.data = parameter.data.bfloat16()
            parameter.grad_dtype = torch.bfloat16
        return model, (zero.Stage1, zero.Stage2)[stage - 1](model, group, optim.adamw, cap_mib=cap_mib), 0
    optimizer = MixedPrecision(model.parameters(), optim.adamw)
    replica = Overlapped(model, group, cap_mib)
    return replica, optimizer, sum(bucket.owned.nbytes for bucket in replica.buckets)


def _ledger_rows(cfg: ZeroLedgerConfig, group: ProcessGroup, stage: int) -> Iterator[dict]:
    import torch

    from fivedim import comm, train
    from fivedim.lab.meter import Collectives, Live
    from fivedim.model import GPT, GPTConfig, cross_entropy

    shape = GPTConfig(**cfg.model_dump(include={"vocabulary", "context", "layers", "heads", "width"}))
    stream = torch.Generator().manual_seed(cfg.seed + group.rank())
    batch = tuple(torch.randint(cfg.vocabulary, (2, 1, cfg.context), generator=stream))
    with Live() as live:
        model = GPT(shape, cfg.seed)
        count = sum(p.numel() for p in model.parameters())
        forward, optimizer, flags = mixed(stage, model, group, cfg.cap_mib)
        with comm.count() as traffic:
            train.step(forward, optimizer, [batch])
        kinds = label(live, model, optimizer, batch)
    kinds["gradients"] -= flags
    kinds["flags"] = flags
    about = {"ranks": group.size(), "stage": stage, "parameters": count}
    yield from _state_rows(about, kinds, group)
    yield _volume_row(about, traffic, group)
    if stage:
        optimizer.zero_grad()
        cross_entropy(forward(batch[0]), batch[1])[0].backward()
        for order in cfg.orders:
            with Collectives() as sent:
                optimizer.clip_(1.0, float(order))
            calls, elements = sent.calls.total(), sent.bytes.total()
            yield {"row": "clipping", **about, "order": f"{order}-norm", "collectives": calls, "bytes": elements}


def label(live: Any, model: nn.Module, optimizer: Any, batch: tuple[Tensor, ...]) -> Counter[str]:
    """Name what is alive, the batch apart; the bytes that are left, by kind."""
    from fivedim.lab.meter import by_kind

    live.label("data", batch)
    live.label("buffers", model.buffers())
    for kind, tensors in optimizer.tensors().items():
        live.label(kind, tensors)
    kinds = by_kind(live.resident())
    del kinds["data"]
    return kinds


def _state_rows(about: dict, kinds: Counter[str], group: ProcessGroup) -> Iterator[dict]:
    from fivedim.ledger import memory

    formula = {"parameters": 0.0} | memory.fully_sharded(about["parameters"], about["ranks"])
    if about["stage"] < 3:
        formula = memory.zero(about["parameters"], about["stage"], about["ranks"])
    others = sum(kinds.values()) - sum(kinds[kind] for kind in (*STATE, "step", "flags"))
    most, least = extremes([*(kinds[kind] for kind in (*STATE, "step", "flags")), others], group)
    for kind, high, low in zip(STATE, most, least, strict=False):
        miss = max(abs(high - formula[kind]), abs(low - formula[kind]))
        about_kind = {"kind": kind, "bytes": high, "least": low, "formula": formula[kind], "miss": miss}
        yield {"row": "state", **about, **about_kind, "per_parameter": high / about["parameters"]}
    for kind, high in zip(("step", "flags", "anything else"), most[len(STATE) :], strict=True):
        yield {"row": "apart", **about, "kind": kind, "bytes": high}


def _volume_row(about: dict, traffic: Any, group: ProcessGroup) -> dict:
    wide = traffic.bytes(dtype="bfloat16")
    (sent, apart), _ = extremes([wide, traffic.bytes() - wide], group)
    n = about["ranks"]
    unit = (n - 1) / n * 2 * about["parameters"]
    return {
        **{"row": "volume", **about, "bytes": sent, "units": sent / unit if n > 1 else 0.0, "apart": apart},
        "collectives": traffic.calls(dtype="bfloat16"),
    }


def extremes(values: list[int], group: ProcessGroup) -> tuple[list[int], list[int]]:
    """The largest and the smallest of each over the ranks."""
    import torch

    from fivedim import comm

    x = torch.tensor(values)
    most, least = comm.all_reduce_max(x, group), -comm.all_reduce_max(-x, group)
    return most.tolist(), least.tolist()
