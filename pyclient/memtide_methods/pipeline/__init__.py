"""PipeDream-2BW over the stages of torch.distributed.pipelining; memtide.pipeline is its door."""
