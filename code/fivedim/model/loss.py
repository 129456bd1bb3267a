"""Cross entropy by tokens, as a sum and a count, so that a mean can be taken over any number of batches and ranks."""

import torch
from torch import Tensor
from torch.nn import functional as F


def cross_entropy(logits: Tensor, targets: Tensor, ignore_index: int = -100) -> tuple[Tensor, Tensor]:
    """Logits [..., V] and targets [...]: the summed loss in nats, and how many targets are valid (an int64 scalar).

    Targets of `ignore_index` count for nothing; with none valid the sum is 0. At least fp32. Sends nothing.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=ignore_index, reduction="sum")
    return total, (targets != ignore_index).sum()
