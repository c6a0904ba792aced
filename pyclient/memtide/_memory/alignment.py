"""The smallest tensor that goes into a chunk, and the alignment of its span there.

Arenas lay out tensors by these two numbers, and the search for a chunk size estimates by them.
"""

from __future__ import annotations

# Smaller tensors stay in ordinary memory; tensor_manager.py says why.
SMALLEST_BYTES = 1024
# Every span in a chunk begins at a multiple of this, as in torch's own CPU allocator.
ALIGNMENT_BYTES = 64


def aligned(size_bytes: int) -> int:
    """The bytes that a span of `size_bytes` takes up in a chunk, with its padding."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
