"""A process that runs a script just far enough to see the model that it trains (memtide plan)."""
