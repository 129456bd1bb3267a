"""The shape and the options of a GPT, and the sizes that the articles name. No torch here."""

import dataclasses

from fivedim.errors import UserError


@dataclasses.dataclass(frozen=True)
class GPTConfig:
    """A decoder-only, pre-LayerNorm GPT. The defaults are GPT-2's architecture at its smallest size (124M).

    `kv_heads` (default: `heads`) is less than `heads` for grouped-query attention. `fused_attention` and `fused_gelu`
    choose torch's fused kernels; without them every intermediate is its own tensor, as in the articles' model.
    `mask_buffers` keeps a causal mask of context x context fp32 in every layer (it needs unfused attention).
    """

    vocabulary: int = 50257
    context: int = 1024
    layers: int = 12
    heads: int = 12
    width: int = 768
    kv_heads: int | None = None
    tied: bool = True
    rope: bool = False
    rope_base: float = 10000.0
    bias: bool = True
    dropout: float = 0.0
    fused_attention: bool = True
    fused_gelu: bool = True
    mask_buffers: bool = False

    def __post_init__(self):
        if self.width % self.heads:
            raise UserError(f"width {self.width} does not divide into {self.heads} heads: change one of them")
        if self.heads % self.key_heads:
            raise UserError(f"kv_heads {self.kv_heads} does not divide {self.heads} heads: choose a divisor")
        if self.rope and self.head_dim % 2:
            raise UserError(f"rope rotates pairs, but head_dim is {self.head_dim}: choose an even one")
        if self.mask_buffers and self.fused_attention:
            raise UserError("mask_buffers: fused attention reads no mask: set fused_attention to False")

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.width // self.heads

    @property
    def key_heads(self) -> int:
        """Heads of keys and of values."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def hidden(self) -> int:
        """Width of the MLP's inner layer."""
        return 4 * self.width


CONFIGS = {
    "tiny": GPTConfig(vocabulary=256, context=64, layers=2, heads=4, width=64),
    "124M": GPTConfig(),
    "774M": GPTConfig(vocabulary=50304, layers=36, heads=20, width=1280),  # GPT-2 Large, vocabulary padded to 64s
    "7B": GPTConfig(context=2048, layers=32, heads=32, width=4096),  # GPT-3 6.7B (Brown et al. 2020, table 2.1)
}


def named(name: str, **changes) -> GPTConfig:
    """The config called `name` with `changes`. Raises UserError for an unknown name."""
    if name not in CONFIGS:
        raise UserError(f"model {name}: unknown; use one of {', '.join(CONFIGS)}")
    return dataclasses.replace(CONFIGS[name], **changes)
