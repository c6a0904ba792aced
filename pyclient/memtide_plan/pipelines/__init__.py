"""Plans how a model trains as a pipeline: its stages, width, micro-batches and schedule.

Pure Python: no part of it imports torch. memtide.pipeline has the names for scripts.
"""
