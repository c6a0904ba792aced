"""Tensors in chunks: arenas, the leases under which chunks are accessed, and tensor layouts."""
