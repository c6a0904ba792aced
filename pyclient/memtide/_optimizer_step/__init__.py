"""Optimizer steps that the daemon computes. The modules recognize torch's functional call, cut it
into batches of chunks, run these (also speculatively, during backward) and undo a failed step.
"""
