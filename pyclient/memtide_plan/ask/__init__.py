"""What a user asks of a plan, in words with units: the machine, the training, what to search."""
