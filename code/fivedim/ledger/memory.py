"""Bytes of model state, as formulas. GB is 10^9 bytes and GiB 2^30."""

GB, GIB = 10**9, 2**30


def state(parameters: int, gradient_bytes: int = 2) -> dict[str, int]:
    """Bytes by kind under bf16 compute, fp32 masters and Adam: 16 a parameter; 18 with `gradient_bytes` = 4.

    AdamW's step counters (`step_counters`) are not among them.
    """
    each = {"parameters": 2, "gradients": gradient_bytes, "master": 4, "exp_avg": 4, "exp_avg_sq": 4}
    return {kind: parameters * size for kind, size in each.items()}


def step_counters(tensors: int) -> int:
    """Bytes of AdamW's counters: 4 for each parameter tensor, whatever its size."""
    return 4 * tensors


def checkpoint(parameters: int, each: int = 2) -> int:
    """Bytes of the weights alone, bf16 unless `each` says otherwise."""
    return parameters * each


DEALT = (("master", "exp_avg", "exp_avg_sq"), ("gradients",), ("parameters",))  # by ZeRO's stages 1, 2 and 3


def zero(parameters: int, stage: int, ranks: int) -> dict[str, float]:
    """Bytes by kind that a rank keeps under a stage of ZeRO: 16, 4 + 12/N, 2 + 14/N and 16/N a parameter.

    A stage deals out what those below it do and one kind more. On average over the ranks, where parts differ. Source:
    Rajbhandari et al., 2020, with the gradients in bf16.
    """
    dealt = {kind for kinds in DEALT[:stage] for kind in kinds}
    return {kind: size / ranks if kind in dealt else size for kind, size in state(parameters).items()}


def fully_sharded(parameters: int, ranks: int) -> dict[str, float]:
    """The same 16/N where shards and their gradients are fp32, and bf16 weights are gathered and never kept."""
    return dict.fromkeys(("master", "gradients", "exp_avg", "exp_avg_sq"), 4 * parameters / ranks)
