"""GPT-2's architecture (Radford et al. 2019): pre-LayerNorm blocks of causal attention and a GELU MLP.

Shape suffixes in comments: B sequences, T tokens, W width, H query heads, K key heads, D head_dim, V vocabulary.
"""

import math
import zlib

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fivedim.errors import UserError
from fivedim.model.attention import Attention, rotation
from fivedim.model.config import GPTConfig


class UnfusedGELU(nn.Module):
    """GELU in its tanh form, one operation at a time: autograd keeps every intermediate. Sends nothing."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape to the same shape."""
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


class MLP(nn.Module):
    """width -> 4 width -> width. Sends nothing."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.up = nn.Linear(config.width, config.hidden, bias=config.bias)
        self.gelu = nn.GELU("tanh") if config.fused_gelu else UnfusedGELU()
        self.out = nn.Linear(config.hidden, config.width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, W] to [B, T, W]."""
        return self.out(self.gelu(self.up(x)))


class Block(nn.Module):
    """One layer: attention and MLP, each on a normalised input and added to the residual stream. Sends nothing."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, bias=config.bias)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.width, bias=config.bias)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, turn: Tensor | None = None) -> Tensor:
        """[B, T, W] to [B, T, W]; `turn` is the rotary embedding's rotation, if the model has one."""
        x = x + self.dropout(self.attention(self.attention_norm(x), turn))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class Head(nn.Module):
    """The last projection, with the embedding's weight if tied, else with its own. Sends nothing."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.weight = None if config.tied else nn.Parameter(torch.empty(config.vocabulary, config.width))

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """[B, T, W] and the embedding [V, W] to logits [B, T, V]."""
        return F.linear(x, embedding if self.weight is None else self.weight)


class GPT(nn.Module):
    """Tokens [B, T] to logits [B, T, V]. Weights are a function of (config, seed) alone. Sends nothing.

    A tied head is the embedding's own weight, used twice: there is one tensor, so nothing can untie it.
    """

    def __init__(self, config: GPTConfig, seed: int = 0):
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = None if config.rope else nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, bias=config.bias)
        self.head = Head(config)
        initialize_(self, seed)

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Logits for every token. `positions` [T] (default 0..T-1) says where in the sequence the tokens stand."""
        if positions is None:
            positions = torch.arange(tokens.shape[-1], device=tokens.device)
        turn = rotation(positions, self.config) if self.config.rope else None
        x = self.embed(tokens, positions)
        for block in self.blocks:
            x = block(x, turn)
        return self.unembed(x)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """[B, T] and [T] to [B, T, W]. Raises UserError for more tokens than the context holds."""
        if tokens.shape[-1] > self.config.context:
            raise UserError(f"{tokens.shape[-1]} tokens, but the context is {self.config.context}: cut the sequence")
        x = self.tokens(tokens)
        return self.dropout(x if self.positions is None else x + self.positions(positions))

    def unembed(self, x: Tensor) -> Tensor:
        """[B, T, W] to logits [B, T, V]."""
        return self.head(self.norm(x), self.tokens.weight)


@torch.no_grad()
def initialize_(model: GPT, seed: int) -> None:
    """GPT-2's initialisation: N(0, 0.02), less by sqrt(2 layers) where a layer writes to the residual stream.

    Each tensor has its own stream of random numbers, seeded by `seed` and its name: a part of the model drawn alone
    (a pipeline's stage) is equal to the same part of the whole. Tensors on the meta device stay as they are.
    """
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            continue
        if parameter.ndim == 1:
            parameter.fill_(float(name.endswith("norm.weight")))
            continue
        stream = torch.Generator(parameter.device).manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        depth = 2 * model.config.layers if name.endswith("out.weight") else 1
        parameter.normal_(0.0, 0.02 / math.sqrt(depth), generator=stream)
