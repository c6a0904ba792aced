"""Layers that share their parameters, and then part."""
