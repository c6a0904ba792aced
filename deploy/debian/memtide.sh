#!/bin/sh
# The memtide command line. MEMTIDE_PYTHON: the interpreter that has PyTorch.
# -P: no module is imported from the working directory, where any user may have put one.
PYTHONPATH=/usr/lib/memtide/python${PYTHONPATH:+:$PYTHONPATH} exec "${MEMTIDE_PYTHON:-python3}" -P -m memtide "$@"
