"""Checkpoints: safetensors files that a thread writes while training goes on."""
