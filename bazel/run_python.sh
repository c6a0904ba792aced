#!/bin/bash
# Runs a Python test from its runfiles. $1: the script; PYTHONPATH: runfiles-relative.
export PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1
IFS=: read -ra parts <<<"${MEMTIDE_IMPORTS:-}"
for p in "${parts[@]}"; do PYTHONPATH="$PWD/$p${PYTHONPATH:+:$PYTHONPATH}"; done
export PYTHONPATH
exec "${MEMTIDE_PYTHON:-python3}" "$@"
