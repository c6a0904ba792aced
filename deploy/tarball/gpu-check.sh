#!/bin/sh
# Checks memtide on this machine's GPU; see --help. MEMTIDE_PYTHON: the interpreter that has PyTorch.
home=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
PYTHONPATH="$home/check:$home/python" exec "${MEMTIDE_PYTHON:-python3}" -P -m gpu_check.main --home "$home" "$@"
