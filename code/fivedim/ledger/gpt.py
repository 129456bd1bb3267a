"""A GPT's parameters by name. A shape is anything with GPTShape's attributes: the formulas know no model code."""

from typing import Protocol


class GPTShape(Protocol):
    """The numbers that the formulas read."""

    vocabulary: int
    context: int
    layers: int
    heads: int
    key_heads: int
    head_dim: int
    width: int
    hidden: int
    tied: bool
    rope: bool
    bias: bool
    fused_attention: bool


def projections(shape: GPTShape) -> int:
    """Width of queries, keys and values together."""
    return (shape.heads + 2 * shape.key_heads) * shape.head_dim


def matrices(shape: GPTShape) -> dict[str, int]:
    """Weights that multiply every token once, by their module, summed over layers. A tied head counts here."""
    return {
        "attention.qkv": shape.layers * shape.width * projections(shape),
        "attention.out": shape.layers * shape.width**2,
        "mlp.up": shape.layers * shape.width * shape.hidden,
        "mlp.out": shape.layers * shape.hidden * shape.width,
        "head": shape.vocabulary * shape.width,
    }


def idle(shape: GPTShape) -> dict[str, int]:
    """Parameters that are in no matrix product: tables that are looked up, scales and shifts applied by element.

    A tied token table is the head's matrix, so it is not idle.
    """
    return {
        "token table": 0 if shape.tied else shape.vocabulary * shape.width,
        "position table": 0 if shape.rope else shape.context * shape.width,
        "norms": (2 * shape.layers + 1) * shape.width * (1 + shape.bias),
        "biases": shape.bias * shape.layers * (projections(shape) + shape.width + shape.hidden + shape.width),
    }


def parameters(shape: GPTShape) -> int:
    """All parameters; a tied table counts once."""
    return sum(matrices(shape).values()) + sum(idle(shape).values())
