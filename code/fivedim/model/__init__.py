"""A GPT that knows nothing of parallelism, its named sizes and its loss."""

from fivedim.model.config import CONFIGS, GPTConfig, named
from fivedim.model.gpt import GPT
from fivedim.model.loss import cross_entropy

__all__ = ["CONFIGS", "GPT", "GPTConfig", "cross_entropy", "named"]
