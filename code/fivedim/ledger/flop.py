"""FLOP of training a GPT, as formulas. A multiply-add is 2 FLOP; only matrix products count.

Each weight of a matrix is multiplied once a token in the forward pass and twice in the backward (once for the gradient
of the input, once for that of the weight): 2 + 4 = 6 FLOP a weight and token. So it is in the first layer as well,
since the embedding below it wants the gradient of its output. Looking a token up costs none.
"""

from fivedim.ledger.gpt import GPTShape, idle, matrices

SECONDS_A_DAY = 86400


def training(parameters: float, tokens: float) -> float:
    """The estimate 6 * Psi * D (Kaplan et al. 2020)."""
    return 6 * parameters * tokens


def forward(shape: GPTShape, length: int, sequences: int) -> dict[str, int]:
    """FLOP of one forward pass by module, over all layers; sequences of `length` tokens.

    `attention.core` is scores and their product with the values: every query with every key, 4 * width * length a token
    and layer. The half above the causal diagonal is computed and masked, so it is not discounted.
    """
    tokens = length * sequences
    products = {name: 2 * weights * tokens for name, weights in matrices(shape).items()}
    return products | {"attention.core": 4 * shape.layers * shape.width * length * tokens}


def backward(shape: GPTShape, length: int, sequences: int) -> dict[str, int]:
    """The same for the backward pass: twice the forward; fused attention computes its scores again (5/2)."""
    core = 5 if shape.fused_attention else 4
    doubled = forward(shape, length, sequences)
    return {name: flop * (core if name == "attention.core" else 4) // 2 for name, flop in doubled.items()}


def remainder(shape: GPTShape, length: int, sequences: int) -> dict[str, int]:
    """What forward and backward differ by from 6 * Psi * D, by name: attention is more, idle parameters are less."""
    tokens = length * sequences
    scores = 4 * shape.layers * shape.width * length * tokens
    extra = {"attention scores": 3 * scores, "scores computed again": shape.fused_attention * scores // 2}
    return extra | {name: -6 * count * tokens for name, count in idle(shape).items()}


def years(flop: float, rate: float, days: float) -> float:
    """Time for `flop` at `rate` FLOP/s in years of `days` days."""
    return flop / rate / SECONDS_A_DAY / days
