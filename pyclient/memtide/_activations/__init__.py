"""Activations: what autograd saves in forward for backward is kept, moved to chunks, or recomputed."""
