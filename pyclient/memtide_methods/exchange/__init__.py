"""Communication hooks of DistributedDataParallel; memtide.exchange is their door."""
