# shellcheck shell=bash
# The folders of the libraries. Sourced after tools/lib.sh; sets LIBRARIES_HOME, LIBRARIES_VENV and
# LIBRARIES_PY.

LIBRARIES_HOME=$MEMTIDE_CACHE/libraries
LIBRARIES_VENV=$LIBRARIES_HOME/venv
LIBRARIES_PY=$LIBRARIES_VENV/bin/python
export LIBRARIES_HOME LIBRARIES_VENV LIBRARIES_PY
