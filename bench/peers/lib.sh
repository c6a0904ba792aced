# shellcheck shell=bash
# Where what we compare with lies. Sourced after tools/lib.sh; sets PEERS_HOME, PEERS_VENV and
# PEERS_PY, and what DeepSpeed wants to know of the machine.

PEERS_HOME=$MEMTIDE_CACHE/peers
PEERS_VENV=$PEERS_HOME/venv
PEERS_PY=$PEERS_VENV/bin/python
PEERS_OPS=$PEERS_HOME/ops
export PEERS_HOME PEERS_VENV PEERS_PY PEERS_OPS

# Of the CPU, with GPUs or without; page-locked memory by its own allocator, as torch's needs a GPU.
export DS_ACCELERATOR=cpu DS_PIN_MEMORY_BACKEND=native
export TORCH_EXTENSIONS_DIR=$PEERS_OPS MAX_JOBS=${MEMTIDE_JOBS:-2}
# Ninja is a program of the environment.
export PATH=$PEERS_VENV/bin:$PATH
