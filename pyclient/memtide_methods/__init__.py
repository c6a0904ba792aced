"""Methods of training that scripts ask for by name: pipelines with two versions of the weights, and
exchanges of fewer bytes. `memtide.pipeline` and `memtide.exchange` are their only doors.
"""
