"""The mesh: ranks on a grid with named axes; the groups that communicate are its slices."""

from dataclasses import dataclass
from math import prod

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from fivedim.errors import UserError

AXES = ("dp", "pp", "cp", "tp", "ep")


@dataclass(frozen=True)
class Mesh:
    """The grid as this rank sees it. `device_mesh` is torch's, for torch's own parallelisms."""

    device_mesh: DeviceMesh

    def group(self, axis: str) -> ProcessGroup:
        """The ranks that differ from this one along `axis` alone; its `group_desc` is the axis' name."""
        return self.device_mesh.get_group(axis)


def build(dp: int = 1, pp: int = 1, cp: int = 1, tp: int = 1, ep: int = 1) -> Mesh:
    """The mesh of the whole world, the last axis' ranks next to each other. Collective: every rank calls it.

    All ranks create all groups, in one order, members or not: torch pairs the wrong ranks otherwise. An axis of size 1
    has ordinary groups. Raises UserError, on every rank, where the sizes do not multiply to the number of ranks. Sends
    what torch's rendezvous sends.
    """
    sizes = dict(zip(AXES, (dp, pp, cp, tp, ep), strict=True))
    if min(sizes.values()) < 1 or prod(sizes.values()) != dist.get_world_size():
        asked = " x ".join(f"{axis}={size}" for axis, size in sizes.items())
        raise UserError(f"mesh {asked}: needs {prod(sizes.values())} ranks, there are {dist.get_world_size()}")
    grid = torch.arange(dist.get_world_size()).view(*sizes.values())
    slices = [grid.movedim(dim, -1).reshape(-1, size).tolist() for dim, size in enumerate(sizes.values())]
    groups = [subgroups(ranks, axis) for axis, ranks in zip(AXES, slices, strict=True)]
    return Mesh(DeviceMesh.from_group(groups, "cpu", mesh=grid, mesh_dim_names=AXES))


def subgroups(ranks: list[list[int]], name: str) -> ProcessGroup | None:
    """This rank's among any groups of ranks that do not overlap, None if it is in none.

    Collective: every rank calls it with the same lists.
    """
    return dist.new_subgroups_by_enumeration(ranks, group_desc=name)[0]
