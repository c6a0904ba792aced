"""Optimizer steps in parts, in host memory. The modules recognize torch's functional call, cut it
into batches of chunks, run these (also speculatively, during backward) and undo a failed step.
"""
