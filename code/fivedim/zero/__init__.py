"""ZeRO: data parallelism whose ranks share out what they would all keep alike.

Stage 1 deals out the optimizer's state, stage 2 the gradients as well; every rank has all weights. Source: Rajbhandari
et al., "ZeRO: Memory optimizations toward training trillion parameter models", 2020. Stage 3 is the room fsdp.
"""

from fivedim.zero.checkpoint import consolidate
from fivedim.zero.stages import Stage1, Stage2

__all__ = ["Stage1", "Stage2", "consolidate"]
