"""Activations are what autograd saves in forward: kept, moved to chunks, or recomputed."""
