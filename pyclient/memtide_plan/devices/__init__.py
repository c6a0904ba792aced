"""Plans for several devices: ranks that share or shard states, and pipelines."""
