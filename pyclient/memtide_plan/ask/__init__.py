"""A user's question to a plan, in words with units: the machine, the training, what to search."""
