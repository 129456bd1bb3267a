"""The mesh: who is in which group, under every shape, however late ranks come."""

import random
import time

import pytest
import torch
import torch.distributed as dist

from fivedim import comm, mesh
from fivedim.errors import UserError
from fivedim.lab import ranks


def members(group):
    return dist.get_process_group_ranks(group)


def grid():
    """Members of every axis' group, on this rank."""
    built = mesh.build(dp=2, tp=2)
    return {axis: (members(built.group(axis)), built.group(axis).group_desc) for axis in mesh.AXES}


def test_groups_are_slices_named_after_their_axis():
    expected = {"dp": [[0, 2], [1, 3], [0, 2], [1, 3]], "tp": [[0, 1], [0, 1], [2, 3], [2, 3]]}
    for rank, found in enumerate(ranks.run(grid, 4)):
        for axis in mesh.AXES:
            assert found[axis] == (expected.get(axis, [[0], [1], [2], [3]])[rank], axis)


def built_in_disorder():
    """Ten meshes and ten irregular partitions, every rank late by its own random time."""
    rank, sleep = dist.get_rank(), random.Random(dist.get_rank())
    for _ in range(10):
        time.sleep(sleep.uniform(0, 0.03))
        built = mesh.build(dp=2, cp=2)
        time.sleep(sleep.uniform(0, 0.03))
        crossed = mesh.subgroups([[0, 3], [1, 2]], "crossed")
        sums = [
            comm.all_reduce(torch.tensor([rank]), group).item()
            for group in (built.group("dp"), built.group("cp"), crossed)
        ]
        assert sums == [2 * (rank % 2) + 2, 4 * (rank // 2) + 1, 3], sums
        assert members(crossed) == ([0, 3] if rank in (0, 3) else [1, 2])
    assert [mesh.subgroups([[1, 2]], "some") is None, rank in (0, 3)] in ([True, True], [False, False])


def test_B63_groups_made_at_different_times_pair_the_right_ranks():
    ranks.run(built_in_disorder, 4, timeout=10)


def degenerate():
    """Sizes of 1 anywhere are ordinary groups."""
    world, rank = dist.get_world_size(), dist.get_rank()
    for axis in mesh.AXES:
        built = mesh.build(**{axis: world})
        for other in mesh.AXES:
            total = comm.ring.all_reduce(torch.tensor([rank + 1.0]), built.group(other)).item()
            assert total == (world * (world + 1) / 2 if other == axis else rank + 1)


def test_B63_axes_of_size_one_are_groups_too():
    ranks.run(degenerate, 3)


def bad_products():
    for sizes in ({"dp": 2}, {"dp": 4}, {"dp": 3, "tp": 0}, {"dp": -1, "tp": -3}):
        with pytest.raises(UserError, match="needs .* ranks, there are 3") as caught:
            mesh.build(**sizes)
        assert "\n" not in str(caught.value)
    return True


def test_B63_a_wrong_product_raises_on_all_ranks():
    assert ranks.run(bad_products, 3) == [True] * 3
