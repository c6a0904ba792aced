"""The smallest tensor that goes into a chunk, and the alignment of its span there.

Arenas lay out tensors by these numbers, and the search for a chunk size estimates by them: as in
host memory, since on a GPU padding adds less than 512 bytes a tensor.
"""

from __future__ import annotations

# Smaller tensors stay in ordinary memory; adoption.py says why.
SMALLEST_BYTES = 1024
# Every span in a chunk begins at a multiple of this, as in torch's own CPU allocator.
ALIGNMENT_BYTES = 64
# On a GPU it begins at a multiple of this, as in torch's CUDA allocator. cuBLASLt chooses its
# algorithm by the alignment of operands: with a smaller one, other bits than without memtide.
GPU_ALIGNMENT_BYTES = 512


def aligned(size_bytes: int, alignment_bytes: int = ALIGNMENT_BYTES) -> int:
    """The bytes that a span of `size_bytes` takes up in a chunk, with its padding."""
    return -(-size_bytes // alignment_bytes) * alignment_bytes
