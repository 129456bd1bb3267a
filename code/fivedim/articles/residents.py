"""The reported residents of articles 4 and 5, from what the libraries were counted to hold.

A kind of storage was counted on a small model: which dtype, whole or a shard, and whether it is one storage or one a
tensor. At the article's size it then weighs what its elements do. Two terms are not tensors, so that no run without a
GPU has them; they follow from the documented rules of torch's allocator (`ledger.allocator`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from fivedim.errors import FAILED, UserError

RANKS = 8
REPORTED = {  # library: the table, the row's key and its value
    **{f"DeepSpeed {stage}": ("zero", "stage", str(stage)) for stage in range(4)},
    "torch DDP": ("fsdp", "mode", "ddp"),
    "FSDP2": ("fsdp", "mode", "fsdp2"),
    "FSDP2, no reshard": ("fsdp", "mode", "fsdp2-noreshard"),
}
STATE = ("parameters", "master", "exp_avg", "exp_avg_sq", "gradients", "gradient buckets")
SMALL = ("step", "unnamed")  # counters of 4 bytes a tensor, and scalars
NEGLIGIBLE = 0.002  # of what is held


@dataclass(frozen=True)
class Article:
    """The model of articles 4 and 5 with its masks, and DeepSpeed's default thresholds."""

    @cached_property
    def tensors(self) -> list[int]:
        """Elements of every parameter."""
        import torch

        from fivedim.model import GPT, named

        with torch.device("meta"):
            return [parameter.numel() for parameter in GPT(named("774M")).parameters()]

    @cached_property
    def masks(self) -> int:
        """Elements of all causal masks."""
        from fivedim.model import named

        return named("774M").layers * named("774M").context ** 2

    @cached_property
    def thresholds(self) -> dict[str, int]:
        """DeepSpeed's, in elements."""
        import fivedim.articles.peers as peers

        return peers.deepspeed_defaults()

    @cached_property
    def persistent(self) -> int:
        """Elements of the parameters that stage 3 leaves whole."""
        return sum(size for size in self.tensors if size <= self.thresholds["stage3_param_persistence_threshold"])


def explain(rows: list[dict], laws: list[dict]) -> Iterator[dict]:
    """Rows `term` (MiB of one kind, and whether counted or documented) and `explained` (their sum, reported, open).

    `rows` and `laws` are those of `libraries`. Raises UserError for a kind that was held and has no term here.
    """
    article, buckets = Article(), {law["library"]: law["per_bucket"] for law in laws}
    totals = {row["library"]: row for row in rows if row["row"] == "total"}
    for library in REPORTED:
        held = [row for row in rows if row["row"] == "held" and row["library"] == library]
        terms = {**_counted(held, article, buckets.get(library, 0.0)), **_documented(held, article)}
        for term, (source, nbytes) in terms.items():
            yield {"row": "term", "library": library, "term": term, "source": source, "mib": nbytes / 2**20}
        yield _sum_row(library, totals[library], sum(nbytes for _, nbytes in terms.values()), article)


def _counted(held: list[dict], article: Article, per_bucket: float) -> dict[str, tuple[str, float]]:
    terms = {}
    for row in held:
        size = row["element_bytes"]
        elements = {
            "buffers": article.masks,
            "persistent parameters": article.persistent,
            "reduce bucket": per_bucket / size * article.thresholds["reduce_bucket_size"],
            **dict.fromkeys(STATE, sum(_sizes(row, article))),
        }
        if row["kind"] in elements:
            terms[row["kind"]] = ("counted", size * elements[row["kind"]])
        elif row["kind"] not in SMALL or row["bytes"] > NEGLIGIBLE * sum(each["bytes"] for each in held):
            raise UserError(f"{row['library']} holds {row['bytes']} B of {row['kind']}: give it a term", FAILED)
    return terms


def _sizes(row: dict, article: Article) -> list[float]:
    """Elements of each storage of a kind at the article's size: one a tensor, or one of all; whole, or a shard."""
    share = 1 if row["copies"] > 0.75 else 1 / RANKS
    sizes = [share * size for size in article.tensors]
    return sizes if row["storages"] > 1 else [sum(sizes)]


def _documented(held: list[dict], article: Article) -> dict[str, tuple[str, float]]:
    from fivedim.ledger import allocator

    spare = 0
    for row in held:
        if row["kind"] in STATE and row["at_start"]:  # later ones fit into blocks that the first step has freed
            spare += sum(allocator.spare(int(row["element_bytes"] * each)) for each in _sizes(row, article))
    return {"unsplit blocks": ("documented", spare), "workspaces": ("documented", allocator.workspaces())}


def _sum_row(library: str, total: dict, nbytes: float, article: Article) -> dict:
    gib, reported = nbytes / 2**30, _reported(library)
    theory = total["theory_whole"] + total["theory_sharded"] / RANKS
    return {
        **{"row": "explained", "library": library, "gib": gib, "reported_gib": reported, "share": gib / reported},
        **{"open_mib": 1024 * (reported - gib), "theory_gib": theory * sum(article.tensors) / 2**30},
    }


def _reported(library: str) -> float:
    from fivedim.lab.config import find_root
    from fivedim.lab.cost_model import reported

    table, key, value = REPORTED[library]
    rows = reported(find_root() / f"configs/reported/{table}.csv")
    return next(float(row["resident_GiB"]) for row in rows if row[key] == value)
