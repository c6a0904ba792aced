"""Resuming a named job: a new process takes parameters and optimizer states over from the last
committed step, and each of its own steps is committed with a manifest for the next process.
"""
