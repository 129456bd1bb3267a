"""What torch's CUDA caching allocator counts as allocated beyond the tensors themselves. Bytes; torch 2.9 and later.

Sources: c10/cuda/CUDACachingAllocator (block and segment sizes) and PyTorch's notes on CUDA semantics (workspaces).
"""

KIB, MIB = 2**10, 2**20
BLOCK = 512  # a block is a multiple of it
SEGMENT = 2 * MIB  # a segment that is made for one large block is a multiple of it
LARGE = 10 * MIB  # from here on a block has a segment made for it where no free one fits
SPLIT = MIB  # of a large block no more than this is left over unsplit, and then it belongs to the block

WORKSPACE = (2 * 4096 + 8 * 16) * KIB  # cuBLAS: the documented default, a handle and stream
HANDLES = 2  # a thread has a handle: one runs the forward, autograd's another one the backward


def spare(size: int) -> int:
    """Bytes of a block beyond a tensor of `size` bytes, where the block's segment was made for it."""
    size += -size % BLOCK
    left = -size % SEGMENT
    return left if size >= LARGE and left <= SPLIT else 0


def workspaces() -> int:
    """Bytes of cuBLAS workspaces, which live from the first product on."""
    return HANDLES * WORKSPACE
