"""The table of all that memtide replaces in torch, and how it is replaced and put back."""
