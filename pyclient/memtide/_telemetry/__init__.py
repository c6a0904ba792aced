"""Observes a training process: events of training, memory over time, the overlap of steps; reports
them to the daemon, and prints the summary.
"""
