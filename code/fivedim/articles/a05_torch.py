"""Article 5, torch's FSDP1 and FSDP2 at the article's size: what a rank holds between steps and at the peak."""

from __future__ import annotations

from fivedim.lab.config import Strict


class FsdpTorchRehearsedConfig(Strict):
    """`model` on `ranks` ranks of `sequences` x `length` tokens each."""

    model: str = "774M"
    ranks: int = 8
    sequences: int = 4
    length: int = 1024


def fsdp_torch_rehearsed(cfg: FsdpTorchRehearsedConfig) -> list[dict]:
    """torch's fully_shard with and without reshard_after_forward, on fake tensors and a fake group.

    The model is the article's: unread causal masks, fused attention, a GELU of single operations. `row` is live: bytes
    of a kind and dtype, `when` resident (after a step) or peak (of that step). The optimizer is our AdamW, as torch's
    reads a value; its moments are there before the step. Sends nothing.
    """
    return torch_rows(cfg.model, cfg.ranks, cfg.sequences, cfg.length)


def torch_rows(model: str, ranks: int, sequences: int, length: int) -> list[dict]:
    """The rows of torch's FSDP2, for experiments that put ours beside them."""
    from functools import partial

    import torch
    from torch.distributed.device_mesh import init_device_mesh

    import fivedim.articles.peers as peers
    from fivedim.lab import rehearsal
    from fivedim.model import named
    from fivedim.optim import adamw

    rows = []
    for reshard in (True, False):
        with peers.quiet(), rehearsal.fake_group(ranks):
            mesh = init_device_mesh("cpu", (ranks,))  # it reads its ranks, so that they must not be fake
            make = partial(peers.fsdp2, reshard=reshard, mesh=mesh, optimizer=adamw)
            with rehearsal.rehearse_on_cpu():
                tokens = torch.zeros(sequences, length, dtype=torch.long)
                observed = peers.observe(make, peers.article_model(named(model)), tokens, warmup=0)
        about = {"row": "live", "implementation": "torch FSDP2", "ranks": ranks, "reshard": reshard}
        for when, found in (("resident", observed.resident), ("peak", observed.peak)):
            rows += [
                {**about, "when": when, "kind": kind, "dtype": dtype, "bytes": nbytes}
                for (kind, dtype), nbytes in found.items()
            ]
    return rows
