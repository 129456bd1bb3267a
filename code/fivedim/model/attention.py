"""Causal self-attention with grouped-query heads and rotary positions.

Shape suffixes in comments: B sequences, T tokens, W width, H query heads, K key heads, D head_dim.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fivedim.model.config import GPTConfig


class FusedCore(nn.Module):
    """softmax(q k^T / sqrt(D)) v under the causal mask in torch's fused kernel. Sends nothing."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.dropout = config.dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, H, T, D], k and v [B, K, T, D] to [B, H, T, D]; H is a multiple of K."""
        dropout = self.dropout if self.training else 0.0
        grouped = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, enable_gqa=grouped)


class UnfusedCore(nn.Module):
    """The same, one operation at a time: scores and probabilities [B, H, T, T] are tensors of their own. Sends nothing.

    The whole square of scores is computed and then masked, so half of its FLOP is spent on what nobody may see.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)
        self.register_buffer("mask", causal(config.context, torch.float32) if config.mask_buffers else None)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, H, T, D], k and v [B, K, T, D] to [B, H, T, D]; H is a multiple of K."""
        group, length = q.shape[1] // k.shape[1], q.shape[2]
        k, v = (x.repeat_interleave(group, dim=1) if group > 1 else x for x in (k, v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        mask = causal(length, torch.bool, q.device) if self.mask is None else self.mask[:length, :length]
        return self.dropout(scores.masked_fill(mask == 0, -math.inf).softmax(dim=-1)) @ v


def causal(length: int, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """[length, length], one where a query (row) may see a key (column): at and before its own place."""
    return torch.ones(length, length, dtype=dtype, device=device).tril()


class Attention(nn.Module):
    """Project to q, k, v; attend; project back. Sends nothing.

    The rows of `qkv.weight` are all query heads, then all key heads, then all value heads.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.head_dim, self.heads, self.key_heads = config.head_dim, config.heads, config.key_heads
        self.qkv = nn.Linear(config.width, (self.heads + 2 * self.key_heads) * self.head_dim, bias=config.bias)
        self.core = (FusedCore if config.fused_attention else UnfusedCore)(config)
        self.out = nn.Linear(config.width, config.width, bias=config.bias)

    def forward(self, x: Tensor, turn: Tensor | None = None) -> Tensor:
        """[B, T, W] to [B, T, W]; `turn` [2, T, D/2] rotates queries and keys."""
        heads = self.qkv(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        q, k, v = heads.split([self.heads, self.key_heads, self.key_heads], dim=1)
        if turn is not None:
            q, k = rotate(q, turn), rotate(k, turn)
        return self.out(self.core(q, k, v).transpose(1, 2).flatten(2))


def rotation(positions: Tensor, config: GPTConfig) -> Tensor:
    """Cosines and sines [2, T, D/2] in fp64 of the angle of every position and pair (Su et al. 2021, RoPE)."""
    pair = torch.arange(config.head_dim // 2, dtype=torch.float64, device=positions.device)
    angle = positions[:, None] * config.rope_base ** (-2 * pair / config.head_dim)
    return torch.stack([angle.cos(), angle.sin()])


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Rotate each pair (i, i + D/2) of x [B, H, T, D] by its angle; at least in fp32, returned in x's dtype."""
    cos, sin = turn.to(torch.promote_types(x.dtype, torch.float32))
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1).to(x.dtype)
