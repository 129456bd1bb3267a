"""The allocator's rules at sizes whose blocks are known: GPT-2 Large's matrices in fp32 and bf16."""

import pytest

from fivedim.ledger import allocator

MIB = allocator.MIB


@pytest.mark.parametrize(
    ("size", "spare"),
    [
        (25 * MIB, MIB),  # an MLP's matrix: a segment of 26 MiB, of which 1 MiB is too little to split off
        (18 * MIB + 768 * 1024, 0),  # q, k, v: a segment of 20 MiB, 1.25 MiB of it are split off
        (12 * MIB + 512 * 1024, 0),  # the MLP's in bf16: 1.5 MiB of 14 are split off
        (50304 * 1280 * 4, 384 * 1024),  # the embedding
        (26 * MIB, 0),
        (6 * MIB + 256 * 1024, 0),  # shares a segment of 20 MiB with others
        (26 * MIB - 1, 0),  # blocks are multiples of 512 B
    ],
)
def test_what_a_block_has_to_spare(size, spare):
    assert allocator.spare(size) == spare


def test_workspaces_are_the_documented_8_mib_of_each_thread():
    assert allocator.workspaces() == 2 * (8 * MIB + 128 * 1024)
