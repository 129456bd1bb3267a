"""A GPT that knows nothing of parallelism, its named sizes and its loss. The sizes alone need no torch."""

from importlib import import_module

from fivedim.model.config import CONFIGS, GPTConfig, named

__all__ = ["CONFIGS", "GPT", "GPTConfig", "cross_entropy", "named"]

LATER = {"GPT": "fivedim.model.gpt", "cross_entropy": "fivedim.model.loss"}  # imported when first asked for


def __getattr__(name: str):
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(LATER[name]), name)
