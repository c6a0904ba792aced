"""`memtide plan`: whether a model trains on a machine, how fast, and what to choose.

A question is a model (model.py), how it is trained (training.py) and a machine (machine.py); the
answer is in answer.py.
"""
