"""Article 4, what libraries really send and hold: DeepSpeed, ZeroRedundancyOptimizer, DDP, FSDP1, FSDP2, and ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from fivedim.lab.config import Strict

if TYPE_CHECKING:
    from pandas import DataFrame

    from fivedim.articles.peers import Observed, Peer
    from fivedim.model import GPT, GPTConfig

UNITS = {  # what a rank sends of a tensor in an operation, the mean over ranks, in units of (N-1)/N
    "allreduce_": 2,
    "allgather_": 1,
    "_allgather_base_": 1,
    "allgather_into_tensor_coalesced_": 1,
    "reduce_scatter_": 1,
    "_reduce_scatter_base_": 1,
    "reduce_scatter_tensor_coalesced_": 1,
    "broadcast_": 1,
    "reduce_": 1,
    "recv_": 0,
}


class LibrariesConfig(Strict):
    """A small GPT with the article's causal masks; what is sent is counted in one step after `warmup` others."""

    layers: int = Field(4, ge=2)
    width: int = 96
    heads: int = 4
    vocabulary: int = 432
    context: int = 64
    length: int = 8
    warmup: int = Field(2, ge=1)
    seed: int = 0

    def shape(self, layers: int) -> GPTConfig:
        """The model's config."""
        from fivedim.model import GPTConfig

        sizes = self.model_dump(include={"width", "heads", "vocabulary", "context"})
        return GPTConfig(**sizes, layers=layers)

    def thresholds(self, parameters: int, bucket: float = 1.0) -> dict[str, int]:
        """DeepSpeed's default thresholds at this size: totals shrink as the model, a tensor's as a matrix of it.

        `bucket` multiplies the reduce bucket.
        """
        import fivedim.articles.peers as peers
        from fivedim.ledger import gpt
        from fivedim.model import named

        article, defaults = named("774M"), peers.deepspeed_defaults()
        scaled = {key: value * parameters // gpt.parameters(article) for key, value in defaults.items()}
        scaled["allgather_bucket_size"] += scaled["allgather_bucket_size"] % 2  # it must be even
        scaled["reduce_bucket_size"] = int(bucket * scaled["reduce_bucket_size"])
        threshold = "stage3_param_persistence_threshold"
        return scaled | {threshold: int(defaults[threshold] * (self.width / article.width) ** 2)}


@dataclass(frozen=True)
class Case:
    """One library at one setting: the names for its rows, how it is made, and what the theory says of it.

    `units` are what a rank sends a step, `whole` and `sharded` the bytes a parameter that it holds between steps. Data
    parallelism also broadcasts the module's `buffers`.
    """

    library: str
    make: Callable[[GPT], Peer]
    units: int
    whole: int
    sharded: int
    buffers: bool = False


def libraries(cfg: LibrariesConfig) -> list[dict]:
    """Every library trains the same model; c10d's operations and live storages are counted on rank 0.

    What c10d sends of a tensor is its formula's, whoever calls it, and all of it for a plain send, of which our sharded
    rooms are made; which operations on which bytes is counted. `row` is

    - sent: `elements` of whole tensors that a step hands to one operation of c10d in one dtype, and the `units` of
      (N-1)/N of the model's elements that a rank sends for it;
    - total: the units of a step, without the buffers' (`state_units`), and the theory's; the same in units of a bf16
      model (`bf16_units`); the bytes a parameter held between steps but for buffers, and the theory's;
    - held: bytes between steps by kind and dtype, in how many storages, and whether they are there before the first
      step. `copies` is how many times the kind holds the model's elements;
    - law: what DeepSpeed's stages 2 and 3 hold is `per_parameter` * parameters + `per_bucket` * elements of the reduce
      bucket + `rest` bytes, solved from three runs; `miss` is the share by which it misses a fourth. Only kinds that
      grow with either count;
    - term, explained: see `residents`.

    Sends what the libraries do.
    """
    from importlib.util import find_spec

    import fivedim.articles.peers as peers
    import fivedim.articles.residents as residents

    if find_spec("deepspeed") is None:
        return [{"unavailable": "DeepSpeed is not installed: pip install 'fivedim[peers]'"}]
    with peers.quiet():
        rows = [row for case in _cases(cfg) for row in _case_rows(cfg, case)]
        laws = [_law_row(cfg, stage) for stage in (2, 3)]
    return [*rows, *laws, *residents.explain(rows, laws)]


def _cases(cfg: LibrariesConfig) -> list[Case]:
    from functools import partial

    import fivedim.articles.peers as peers

    zero = cfg.thresholds(_parameters(cfg, cfg.layers))
    apart = zero | {"stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0}
    return [
        Case("ours, DDP", peers.data_parallel, 2, 16, 0, buffers=True),
        Case("ours, ZeRO 1", partial(peers.zero, stage=1), 2, 2, 12),
        Case("ours, ZeRO 2", partial(peers.zero, stage=2), 2, 2, 12),
        Case("ours, FSDP", peers.fully_sharded, 3, 0, 12),
        Case("torch DDP", peers.torch_ddp, 2, 16, 0, buffers=True),
        Case("ZeroRedundancyOptimizer", peers.zero_redundancy, 2, 8, 8, buffers=True),
        Case("DeepSpeed 0", partial(peers.deepspeed, stage=0), 2, 14, 0),
        Case("DeepSpeed 1", partial(peers.deepspeed, stage=1, **zero), 2, 2, 12),
        Case("DeepSpeed 2", partial(peers.deepspeed, stage=2, **zero), 2, 2, 12),
        Case("DeepSpeed 3", partial(peers.deepspeed, stage=3, **zero), 3, 0, 14),
        Case("DeepSpeed 3, nothing kept", partial(peers.deepspeed, stage=3, **apart), 3, 0, 14),
        Case("FSDP1", peers.fsdp1, 3, 0, 12),
        Case("FSDP2", peers.fsdp2, 3, 0, 12),
        Case("FSDP2, no reshard", partial(peers.fsdp2, reshard=False), 2, 0, 12),
    ]


def _parameters(cfg: LibrariesConfig, layers: int) -> int:
    from fivedim.ledger import gpt

    return gpt.parameters(cfg.shape(layers))


def _case_rows(cfg: LibrariesConfig, case: Case) -> Iterator[dict]:
    import torch.distributed as dist

    ranks, parameters = dist.get_world_size(), _parameters(cfg, cfg.layers)
    sent, held = _observe(cfg, case.make, cfg.layers, cfg.warmup)
    about = {"library": case.library, "ranks": ranks, "parameters": parameters}
    units = {name: each / parameters for name, each in (UNITS | {"send": ranks / (ranks - 1)}).items()}
    rows = [about | _sent_row(name, dtype, nbytes, units[name]) for (name, dtype), nbytes in sent.typed.items()]
    yield from rows
    for row in held:
        copies = row["bytes"] / row["element_bytes"] / parameters
        yield {**about, **row, "copies": copies}
    units = sum(row["units"] for row in rows)
    masks = sum(row["bytes"] // row["element_bytes"] for row in held if row["kind"] == "buffers") * case.buffers
    yield {
        **{"row": "total", **about, "units": units, "state_units": units - masks / parameters},
        "theory_units": case.units,
        "bf16_units": sum(row["units"] * row["element_bytes"] / 2 for row in rows),
        "per_parameter": sum(row["bytes"] for row in held if row["kind"] != "buffers") / parameters,
        "theory_per_parameter": case.whole + case.sharded / ranks,
        **{"theory_whole": case.whole, "theory_sharded": case.sharded},
    }


def _sent_row(name: str, dtype: str, nbytes: int, units: float) -> dict:
    elements = nbytes // _size(dtype)
    return {
        **{"row": "sent", "collective": name.strip("_"), "dtype": dtype, "element_bytes": _size(dtype)},
        **{"elements": elements, "units": units * elements},
    }


def _size(dtype: str) -> int:
    """Bytes of an element."""
    import torch

    return getattr(torch, dtype).itemsize


def _observe(cfg: LibrariesConfig, make: Callable[[GPT], Peer], layers: int, warmup: int) -> tuple:
    """What c10d was given in the step after `warmup` others, and rows of what is held after it."""
    import torch

    import fivedim.articles.peers as peers

    model = peers.article_model(cfg.shape(layers), cfg.seed)
    tokens = torch.randint(cfg.vocabulary, (1, cfg.length), generator=torch.Generator().manual_seed(cfg.seed))
    observed = peers.observe(make, model, tokens, warmup)
    return observed.sent, _held(observed)


def _held(observed: Observed) -> list[dict]:
    from fivedim.lab.meter import UNLABELLED

    return [
        {
            **{"row": "held", "kind": observed.rest if kind == UNLABELLED else kind, "dtype": dtype, "bytes": nbytes},
            **{"element_bytes": _size(dtype), "storages": observed.storages[kind, dtype]},
            **{"at_start": kind in observed.before},
        }
        for (kind, dtype), nbytes in observed.resident.items()
        if nbytes
    ]


GROWS = {"parameters", "master", "exp_avg", "exp_avg_sq", "gradients", "reduce bucket"}


def _law_row(cfg: LibrariesConfig, stage: int) -> dict:
    """Solved from half the layers, all of them and twice the bucket; tried on half the layers and twice the bucket."""
    half, sizes = cfg.layers // 2, {layers: _parameters(cfg, layers) for layers in (cfg.layers // 2, cfg.layers)}
    buckets = {times: cfg.thresholds(sizes[half], times) for times in (1, 2)}
    held = {(layers, times): _grown(cfg, stage, layers, buckets[times]) for layers in sizes for times in buckets}
    bucket = buckets[1]["reduce_bucket_size"]
    per_parameter = (held[cfg.layers, 1] - held[half, 1]) / (sizes[cfg.layers] - sizes[half])
    per_bucket = (held[half, 2] - held[half, 1]) / bucket
    rest = held[half, 1] - per_parameter * sizes[half] - per_bucket * bucket
    predicted = per_parameter * sizes[cfg.layers] + per_bucket * 2 * bucket + rest
    return {
        **{"row": "law", "library": f"DeepSpeed {stage}", "per_parameter": per_parameter, "per_bucket": per_bucket},
        **{"rest": rest, "rest_share": rest / held[half, 1], "miss": predicted / held[cfg.layers, 2] - 1},
    }


def _grown(cfg: LibrariesConfig, stage: int, layers: int, zero: dict[str, int]) -> int:
    """Bytes that are held after one step, of the kinds that grow with the model or the bucket."""
    from functools import partial

    import fivedim.articles.peers as peers

    _, held = _observe(cfg, partial(peers.deepspeed, stage=stage, **zero), layers, 0)
    return sum(row["bytes"] for row in held if row["kind"] in GROWS)


def stage_3_below_2(rows: DataFrame) -> float:
    """1 if DeepSpeed's stage 3 sends less than its stage 2, else 0."""
    units = rows[rows.row == "total"].set_index("library").units
    return float(units["DeepSpeed 3"] < units["DeepSpeed 2"])


def fsdp2_over_stage_3(rows: DataFrame) -> float:
    """What FSDP2 holds by its terms, over what DeepSpeed's stage 3 does."""
    return _over(rows, "gib")


def ledgers_ratio(rows: DataFrame) -> float:
    """What the ledger has for FSDP2, over what it has for stage 3."""
    return _over(rows, "theory_gib")


def _over(rows: DataFrame, column: str) -> float:
    found = rows[rows.row == "explained"].set_index("library")[column]
    return float(found["FSDP2"] / found["DeepSpeed 3"])


def ours_over_fsdp2(rows: DataFrame) -> float:
    """What our FSDP holds a parameter, over what torch's FSDP2 does."""
    found = rows[rows.row == "total"].set_index("library").per_parameter
    return float(found["ours, FSDP"] / found["FSDP2"])
