#!/bin/sh
# The memtide command line of an unpacked tarball. MEMTIDE_PYTHON: the interpreter that has PyTorch.
# -P: no module is imported from the working directory, where any user may have put one.
home=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
export MEMTIDE_LIBRARY="${MEMTIDE_LIBRARY:-$home/lib/libmemtide.so}"
export MEMTIDED="${MEMTIDED:-$home/bin/memtided}"
export MEMTIDE_REPLAY="${MEMTIDE_REPLAY:-$home/bin/memtide-replay}"
PYTHONPATH="$home/python${PYTHONPATH:+:$PYTHONPATH}" exec "${MEMTIDE_PYTHON:-python3}" -P -m memtide "$@"
