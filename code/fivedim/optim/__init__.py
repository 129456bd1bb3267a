"""Optimizers from scratch: a chain of named links."""

from fivedim.optim.chain import Adam, Link, Momentum, Optimizer, WeightDecay, adamw, sgd

__all__ = ["Adam", "Link", "Momentum", "Optimizer", "WeightDecay", "adamw", "sgd"]
