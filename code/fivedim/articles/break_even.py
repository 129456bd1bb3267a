"""Where one way to parallelize starts to pay on a machine, by its cost model alone: `fivedim break-even` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from fivedim.lab.machine import MachineConfig

if TYPE_CHECKING:
    from fivedim.lab.cost_model import CostModel

BF16, FP32 = 2, 4  # bytes
KERNELS = 5  # of a layer of a pipeline's stage and microbatch: two products backward, one forward, and a GELU each way


class BreakEvenConfig(MachineConfig):
    """`ranks` GPUs and a model of `width`; the pipeline has `stages` of `layers` square layers and `rows` in a batch.

    `tokens` is a data-parallel rank's share of a step.
    """

    ranks: int = Field(8, ge=2)
    width: int = 1280
    tokens: int = 4096
    stages: int = Field(4, ge=2)
    layers: int = 6
    stage_width: int = 4096
    rows: int = 8192


def break_even(cfg: BreakEvenConfig) -> list[dict]:
    """One row a break-even: name, value, unit, and what it is for. Sends nothing."""
    from fivedim.lab.cost_model import CostModel

    model = CostModel.of(cfg.machine)
    values = {**_tensor(cfg, model), **_ring(cfg, model), **_pipeline(cfg, model), **_reshard(cfg, model)}
    return [
        {"name": name, "value": float(value), "unit": unit, "note": note}
        for name, (value, unit, note) in values.items()
    ]


def _tensor(cfg: BreakEvenConfig, model: CostModel) -> dict:
    from fivedim.ledger import break_even

    def all_reduce(size: float) -> float:
        return model.times.seconds("all_reduce", cfg.ranks, size)

    seconds = break_even.tensor_against_data_seconds(cfg.width, FP32, all_reduce)
    unit, note = "tokens", f"a layer of width {cfg.width}; fewer tokens favour tensor parallelism"
    return {
        "tensor against data parallel, in bytes": (break_even.tensor_against_data_tokens(cfg.width), unit, note),
        "tensor against data parallel, in time": (seconds, unit, f"{note}; fp32, N = {cfg.ranks}"),
    }


def _ring(cfg: BreakEvenConfig, model: CostModel) -> dict:
    """A hop to the next rank is a round of the ring all-gather."""
    from fivedim.ledger import break_even

    n, flops, largest = cfg.ranks, model.accelerator.gemm["bfloat16"], 2**30

    def hop(size: float) -> float:
        return model.times.seconds("all_gather", n, n * size) / (n - 1)

    hidden = break_even.hidden_ring_sequence(n, BF16, flops, largest / hop(largest))
    faster = break_even.ring_sequence(n, cfg.width, BF16, flops, hop)
    note = f"bf16 at the peak of a product, N = {n}, not causal, forward"
    return {
        "ring attention hides its hops": (hidden, "tokens of sequence", note),
        "ring attention, nothing hidden, beats one GPU": (faster, "tokens of sequence", f"{note}, width {cfg.width}"),
    }


def _pipeline(cfg: BreakEvenConfig, model: CostModel) -> dict:
    """A microbatch adds to the gradients in memory, and sends activations forward and their gradients back."""
    from fivedim.ledger import break_even

    width, card = cfg.stage_width, model.accelerator
    boundary = model.times.curves["broadcast", 2]
    latency = boundary.times[0]
    transfer = boundary.seconds(cfg.rows * width * BF16) - latency
    work = 3 * cfg.layers * card.product(cfg.rows, width, width, "bfloat16") + 2 * transfer
    accumulate = card.stream(3 * cfg.layers * width**2 * BF16)
    overhead = accumulate + 2 * latency + KERNELS * cfg.layers * card.launch
    note = f"{cfg.stages} stages of {cfg.layers} x {width} x {width}, {cfg.rows} rows, bf16"
    return {
        "best number of microbatches": (break_even.microbatches(cfg.stages, work, overhead), "microbatches", note),
        "a stage's work": (1e3 * work, "ms", "products at peak, and transfers, for the whole batch"),
        "a microbatch's overhead": (1e3 * overhead, "ms", "adding to the gradients, latency, launches"),
    }


def _reshard(cfg: BreakEvenConfig, model: CostModel) -> dict:
    from fivedim.ledger import break_even
    from fivedim.ledger.time import bus_bandwidth

    parameters, times = 12 * cfg.width**2, model.times
    compute = 4 * parameters * cfg.tokens / model.accelerator.gemm["bfloat16"]
    gather = times.seconds("all_gather", cfg.ranks, BF16 * parameters)
    scatter = times.seconds("reduce_scatter", cfg.ranks, FP32 * parameters)
    note = f"a layer of width {cfg.width}, {cfg.tokens} tokens, bf16 weights, fp32 gradients, N = {cfg.ranks}"
    speedup = break_even.reshard_speedup(compute, gather, scatter)
    rate = speedup * bus_bandwidth("all_gather", cfg.ranks, BF16 * parameters, gather) / 1e9
    return {
        "resharding after the forward is free": (speedup, "times these links' speed", note),
        "the same as a rate": (rate, "GB/s", f"bus bandwidth of the all-gather of a layer, N = {cfg.ranks}"),
    }
