"""Mixed precision: bf16 compute weights, fp32 master weights."""

from fivedim.precision.mixed import MixedPrecision

__all__ = ["MixedPrecision"]
