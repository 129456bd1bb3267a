"""Fully sharded data parallelism (FSDP, ZeRO-3): every rank keeps its part of every parameter, gradient and optimizer
state, and has a layer whole only while it runs.

`layout` says who keeps what, a `Unit` gathers and reduces, `FullySharded` does so around a model's own forward and
backward, and `checkpoint` turns shards into a plain state dict and back. Source: Rajbhandari et al., "ZeRO", SC 2020;
Zhao et al., "PyTorch FSDP", VLDB 2023.
"""

from fivedim.fsdp import checkpoint
from fivedim.fsdp.layout import flat, rows
from fivedim.fsdp.sharded import FullySharded, Policy
from fivedim.fsdp.unit import Unit

__all__ = ["FullySharded", "Policy", "Unit", "checkpoint", "flat", "rows"]
