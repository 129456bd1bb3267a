"""What all data parallelism shares, and the two ways that wait for the end of the backward."""

import zlib
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from fivedim import comm
from fivedim.comm.backward import Backward, Synchronized
from fivedim.data_parallel.bucket import Bucket, gradient_dtype
from fivedim.errors import FAILED, UserError
from fivedim.ledger import buckets

BROADCAST_CAP = 250 * buckets.MIB  # torch's: tensors that are broadcast together


class Bucketed(Synchronized, nn.Module):
    """`module` as one of the group's replicas: after a backward every `.grad` is the mean over the ranks.

    The mean is right for losses that are means over equally large parts of the batch; where parts differ, divide each
    rank's sum by the `mean` of their sizes. Gradients lie in buckets of `cap_mib` MiB by torch's rule, the last
    parameter's first (`None`: torch's default caps), from the first backward to the end, also between microbatches.
    Buckets follow from the order of the parameters alone, and all ranks reduce them in one order: it does not matter in
    which order a rank's gradients are ready. torch rebuilds its buckets in the order of its first backward; for a model
    that registers its layers in the order of their use this gives the same buckets, for another it would hide more.

    Parameters may be tied, of mixed dtypes, frozen before wrapping, or unused, on some ranks or all. A backward is
    synchronized if its forward was, so `no_sync` goes around both. Raises UserError, on every rank, where the ranks'
    models differ.

    Sends 2(N-1)/N of each bucket in one all-reduce at the end of each synchronized backward; all parameters and buffers
    from position 0 when made; and the buffers, S a rank, before each forward that follows a synchronized one.
    """

    def __init__(self, module: nn.Module, group: ProcessGroup, cap_mib: float | None = None):
        super().__init__()
        self.module, self.group = module, group
        self._check_same_model()
        broadcast_([*module.parameters(), *module.buffers()], group)
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad][::-1]
        dtypes = [gradient_dtype(p) for _, p in trained]
        sizes = [p.numel() * dtype.itemsize for (_, p), dtype in zip(trained, dtypes, strict=True)]
        kinds = [(dtype, p.device) for (_, p), dtype in zip(trained, dtypes, strict=True)]
        assigned = buckets.assign(sizes, buckets.caps(cap_mib), kinds) if trained else []
        self.buckets = [Bucket(dict(trained[index] for index in indices)) for indices in assigned]
        for index, bucket in enumerate(self.buckets):
            for name, parameter in bucket.parameters.items():
                parameter.register_post_accumulate_grad_hook(partial(self._ready, index, name))
        self._buffers_due = True
        self._backward = Backward(self._finish)

    def forward(self, *args, **kwargs) -> Any:
        """What the module returns; its backward averages the gradients, unless this is inside `no_sync`."""
        if self._backward.running:
            self._end()  # an exception cut the last backward short
        if self._buffers_due:
            broadcast_(self.module.buffers(), self.group)
        output = self.module(*args, **kwargs)
        self._buffers_due = self._synchronizes and torch.is_grad_enabled()
        if self._buffers_due:
            self._backward.watch(output)
        return output

    def _ready(self, index: int, name: str, _: nn.Parameter) -> None:
        """The backward has added to a gradient of bucket `index`."""
        self.buckets[index].take(name)

    def _finish(self) -> None:
        """The backward is over."""
        for bucket in self.buckets:
            bucket.launch(self.group).wait()
            bucket.adopt()
        self._end()

    def _end(self) -> None:
        """Nothing is under way."""
        self._backward.running = False

    def _check_same_model(self) -> None:
        model = [(name, p.shape, p.dtype, p.requires_grad) for name, p in self.module.named_parameters()]
        mark = zlib.crc32(repr(model).encode())
        most, least = comm.all_reduce_max(torch.tensor([mark, -mark]), self.group)
        try:
            torch._assert_async(most == -least)  # a comparison that fake tensors, which have no values, pass
        except RuntimeError:
            what = "a parameter's name, shape, dtype or requires_grad"
            raise UserError(f"the ranks' models differ in {what}: build the same on every rank", FAILED) from None


class Naive(Bucketed):
    """As Bucketed, but a gradient at a time: one all-reduce each, all after the backward."""

    def __init__(self, module: nn.Module, group: ProcessGroup):
        super().__init__(module, group, cap_mib=0)


@torch.no_grad()
def broadcast_(tensors: Iterable[Tensor], group: ProcessGroup, src: int = 0) -> None:
    """Write `src`'s values into all `tensors`, as few of one dtype at a time as reach 250 MiB. Sends S a rank."""
    tensors = list(tensors)
    kinds = [(x.dtype, x.device) for x in tensors]
    for indices in buckets.assign([x.nbytes for x in tensors], (BROADCAST_CAP,), kinds) if tensors else []:
        together = [tensors[index] for index in indices]
        flat = torch.cat([x.flatten() for x in together])
        comm.asynchronous.broadcast_(flat, group, src).wait()
        for x, piece in zip(together, flat.split([x.numel() for x in together]), strict=True):
            x.copy_(piece.view_as(x))


def mean(x: Tensor, group: ProcessGroup) -> Tensor:
    """The mean of all x, in float64. Sends an all-reduce of x in float64."""
    return comm.all_reduce(x.double(), group) / group.size()
