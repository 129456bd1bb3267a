"""A GPT as the list of its operations, in the order of the forward pass: FLOP, and the parameters each one owns."""

from collections.abc import Sequence
from typing import NamedTuple

from fivedim.ledger import flop
from fivedim.ledger.gpt import GPTShape, projections


class Operation(NamedTuple):
    """`forward` and `backward` in FLOP; `tensors` in elements by name, as registered.

    A parameter's gradient is complete when the backward of the operation that owns it is done. A tied head owns none:
    its weight is the token table's, which is used first and complete last.
    """

    name: str
    forward: float
    backward: float
    tensors: dict[str, int]


def operations(shape: GPTShape, length: int, sequences: int) -> list[Operation]:
    """Every operation of the model on `sequences` of `length` tokens; those that multiply no matrices cost no FLOP."""
    forward, backward = flop.forward(shape, length, sequences), flop.backward(shape, length, sequences)
    listed = []
    for name, tensors in _modules(shape):
        kind, share = name, 1
        if name.startswith("blocks."):
            kind, share = name.split(".", 2)[2], shape.layers
        listed.append(Operation(name, forward.get(kind, 0) / share, backward.get(kind, 0) / share, tensors))
    return listed


def tensors(listed: Sequence[Operation]) -> dict[str, int]:
    """Every parameter's elements by name, in the order of the forward pass."""
    return {name: elements for operation in listed for name, elements in operation.tensors.items()}


def work(listed: Sequence[Operation]) -> float:
    """FLOP of one forward and backward pass."""
    return sum(operation.forward + operation.backward for operation in listed)


def _modules(shape: GPTShape) -> list[tuple[str, dict[str, int]]]:
    table = shape.vocabulary * shape.width
    first = [("tokens", {"tokens.weight": table})]
    if not shape.rope:
        first.append(("positions", {"positions.weight": shape.context * shape.width}))
    blocks = [_block(shape, f"blocks.{layer}.") for layer in range(shape.layers)]
    last = [_module("norm", 1, shape.width, shape.bias), ("head", {} if shape.tied else {"head.weight": table})]
    return [*first, *(module for block in blocks for module in block), *last]


def _block(shape: GPTShape, prefix: str) -> list[tuple[str, dict[str, int]]]:
    width = shape.width
    return [
        _module(prefix + "attention_norm", 1, width, shape.bias),
        _module(prefix + "attention.qkv", width, projections(shape), shape.bias),
        (prefix + "attention.core", {}),
        _module(prefix + "attention.out", width, width, shape.bias),
        _module(prefix + "mlp_norm", 1, width, shape.bias),
        _module(prefix + "mlp.up", width, shape.hidden, shape.bias),
        _module(prefix + "mlp.out", shape.hidden, width, shape.bias),
    ]


def _module(name: str, inputs: int, outputs: int, bias: bool) -> tuple[str, dict[str, int]]:
    return name, {f"{name}.weight": inputs * outputs} | ({f"{name}.bias": outputs} if bias else {})
