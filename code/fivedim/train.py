"""One step function, and a small trainer that is a function of its configuration alone."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fivedim.errors import UserError
from fivedim.model import GPT, cross_entropy, named
from fivedim.model.config import CONFIGS
from fivedim.optim import adamw
from fivedim.precision import MixedPrecision

IGNORE = -100
Batch = tuple[Tensor, Tensor]


def step(
    model: Callable[[Tensor], Tensor],
    optimizer: Any,
    microbatches: Sequence[Batch],
    valid: Tensor | None = None,
) -> Tensor:
    """One optimizer step on the mean loss over all valid tokens of `microbatches` of (tokens, targets), each [B, T].

    Every token weighs the same however the microbatches are cut (a mean of their means would favour short ones), and
    one without valid targets adds nothing. Returns the loss in nats a token, a scalar without graph. The gradients stay
    alive until the next step. Sends nothing.

    Where `model` averages gradients over ranks, `valid` is the mean number of valid tokens on a rank
    (`data_parallel.mean(train.valid_tokens(microbatches), group)`); the loss is then the mean of the ranks' results.
    """
    optimizer.zero_grad()
    valid = valid_tokens(microbatches) if valid is None else valid
    valid = valid.masked_fill(valid == 0, 1)
    loss = torch.zeros((), device=valid.device)
    for tokens, targets in microbatches:
        part = cross_entropy(model(tokens), targets, IGNORE)[0] / valid
        part.backward()
        loss = loss + part.detach()
    optimizer.step()
    return loss


def valid_tokens(microbatches: Sequence[Batch]) -> Tensor:
    """How many targets count, a scalar."""
    return sum((targets != IGNORE).sum() for _, targets in microbatches)


class TrainConfig(BaseModel):
    """What `fivedim train` trains: a named model on the bytes of a text, or on a seeded stream that can be learnt."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Literal[tuple(CONFIGS)] = "tiny"
    text: Path | None = None
    steps: int = Field(100, ge=1)
    microbatches: int = Field(1, ge=1)
    batch: int = Field(8, ge=1, description="sequences in a microbatch")
    length: int = Field(64, ge=1, description="tokens in a sequence")
    rate: float = Field(3e-3, gt=0)
    precision: Literal["fp32", "bf16", "bf16-accumulate-fp32"] = "bf16"
    seed: int = 0


def main(config: TrainConfig) -> Iterator[float]:
    """Train; yield the loss (nats a token) of every step. Sends nothing."""
    stream = torch.Generator().manual_seed(config.seed)
    data = read(config.text) if config.text else chain(config.seed)
    if len(data) <= config.length:
        source = config.text or "the built-in stream"
        raise UserError(f"{source}: {len(data)} tokens do not fill a sequence of {config.length}: shorten the sequence")
    model, optimizer = build(config)
    for _ in range(config.steps):
        yield step(model, optimizer, [draw(data, config, stream) for _ in range(config.microbatches)]).item()


def build(config: TrainConfig) -> tuple[GPT, Any]:
    """The model and its optimizer in the configured precision."""
    model = GPT(named(config.model), config.seed)
    if config.precision == "fp32":
        return model, adamw(model.parameters(), config.rate)
    accumulate = torch.float32 if config.precision == "bf16-accumulate-fp32" else None
    return model, MixedPrecision(model.parameters(), lambda masters: adamw(masters, config.rate), accumulate=accumulate)


def read(path: Path) -> Tensor:
    """The bytes of a file as tokens 0..255."""
    try:
        return torch.tensor(list(path.read_bytes()))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}: give a text file") from None


def chain(seed: int, length: int = 1 << 15, symbols: int = 64) -> Tensor:
    """A random walk over `symbols` tokens, each followed by one of its own four: at best log(4) nats a token."""
    stream = torch.Generator().manual_seed(seed)
    successors = torch.randint(symbols, (symbols, 4), generator=stream).tolist()
    walk, here = [], 0
    for choice in torch.randint(4, (length,), generator=stream).tolist():
        here = successors[here][choice]
        walk.append(here)
    return torch.tensor(walk)


def draw(data: Tensor, config: TrainConfig, stream: torch.Generator) -> Batch:
    """A microbatch of random places in the data: tokens [B, T] and the tokens that follow them."""
    starts = torch.randint(len(data) - config.length, (config.batch, 1), generator=stream)
    windows = data[starts + torch.arange(config.length + 1)]
    return windows[:, :-1], windows[:, 1:]
