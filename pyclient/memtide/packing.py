"""What goes into chunks, and on which addresses: two numbers that arenas and estimates share."""

from __future__ import annotations

# Smaller tensors stay where they are: adopt.py says why.
SMALLEST_BYTES = 1024
# Of every span in a chunk, as torch's own allocator does.
ALIGNMENT_BYTES = 64


def aligned(size_bytes: int) -> int:
    """What a span of so many bytes takes up."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
