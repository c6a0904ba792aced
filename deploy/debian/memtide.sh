#!/bin/sh
# The memtide command line. MEMTIDE_PYTHON: the interpreter that has PyTorch.
PYTHONPATH=/usr/lib/memtide/python${PYTHONPATH:+:$PYTHONPATH} exec "${MEMTIDE_PYTHON:-python3}" -m memtide "$@"
