"""Data parallelism: every rank has the whole model and its part of the batch, and gradients are averaged.

Three ways to average the same gradients, each a wrapper around a module: `Naive` sends one at a time after the
backward, `Bucketed` many together, `Overlapped` (what torch calls DistributedDataParallel) under the backward.
"""

from fivedim.data_parallel.bucket import Bucket
from fivedim.data_parallel.overlapped import Overlapped
from fivedim.data_parallel.replica import Bucketed, Naive, mean

__all__ = ["Bucket", "Bucketed", "Naive", "Overlapped", "mean"]
