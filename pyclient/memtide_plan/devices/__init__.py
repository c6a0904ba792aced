"""Plans for several devices: ranks that share or shard states, pipelines, graphs of operators."""
