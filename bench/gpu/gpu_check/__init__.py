"""Checks of memtide on a GPU, in a few minutes: tools/gpu-check."""
