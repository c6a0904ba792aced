"""Methods of training that are asked for by name: pipelines with two versions of the weights,
exchanges of fewer bytes, and layers that share their parameters. `memtide.pipeline`,
`memtide.exchange`, `memtide.share_layers`, `memtide.delink` and `memtide run --share` are their
only doors.
"""
