"""Activations, what autograd saves in forward for backward: kept, moved to chunks, or recomputed."""
