"""The file of a plan: the words of a question and its answer, which `memtide plan` writes and
`memtide run --plan` reads."""
