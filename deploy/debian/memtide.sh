#!/bin/sh
# The memtide command line. MEMTIDE_PYTHON: the interpreter that has PyTorch. Commands that are about
# the node need no PyTorch, and run with the system's Python: the first one of PATH is any user's.
# -P: no module is imported from the working directory, where any user may have put one.
python=python3
case "${1-}" in
status | idle | admin | doctor) python=/usr/bin/python3 ;;
esac
PYTHONPATH=/usr/lib/memtide/python${PYTHONPATH:+:$PYTHONPATH} exec "${MEMTIDE_PYTHON:-$python}" -P -m memtide "$@"
