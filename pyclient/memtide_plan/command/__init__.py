"""The command line of `memtide plan` and of `memtide doctor --measure`."""
