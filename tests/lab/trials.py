"""Small experiments that succeed or fail on purpose; the launching tests run them."""

from fivedim.lab.config import Strict


class SumConfig(Strict):
    sizes: list[int] = [3]
    seed: int = 0


def sums(cfg: SumConfig) -> list[dict]:
    """One all-reduce a size: rows of (size, ranks, total)."""
    import torch
    import torch.distributed as dist

    rows = []
    for size in cfg.sizes:
        x = torch.full((size,), dist.get_rank() + 1.0)
        dist.all_reduce(x)
        rows.append({"size": size, "ranks": dist.get_world_size(), "total": x.sum().item()})
    return rows
