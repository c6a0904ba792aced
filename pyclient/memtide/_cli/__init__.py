"""The command line: `memtide run`, `status`, `doctor`, `replay` and `trace`."""
