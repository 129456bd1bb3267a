"""Our fully sharded data parallelism against torch's fully_shard: the same model, units, dtypes and batch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from fivedim.bench.data_parallel import SHAPE, step
from fivedim.bench.harness import Comparison, compare
from fivedim.fsdp import FullySharded, Policy
from fivedim.model import GPT

CASES = ((torch.float32, True), (torch.float32, False), (torch.bfloat16, True))  # parameters' dtype, reshard


def run(repeat: int) -> list[dict]:
    """Forward and backward of one sequence a rank, a row a case, on every rank. Sends what the wrappers say."""
    return [compare(comparison(*case, dist.group.WORLD), dist.group.WORLD, repeat) for case in CASES]


def comparison(dtype: torch.dtype, reshard: bool, group: dist.ProcessGroup) -> Comparison:
    model = GPT(SHAPE)
    ours = FullySharded(model, group, model.blocks, policy=Policy(dtype, torch.float32), reshard=reshard)
    theirs = torchs(dtype, reshard, group.size())
    work = f"3.3M parameters in {dtype}, {'' if reshard else 'no '}reshard".replace("torch.", "")
    return Comparison("FSDP", "torch fully_shard", work, lambda: step(ours), lambda: step(theirs))


def torchs(dtype: torch.dtype, reshard: bool, ranks: int) -> nn.Module:
    """torch's, sharded over all ranks."""
    model, mesh = GPT(SHAPE), init_device_mesh("cpu", (ranks,))
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    return model
