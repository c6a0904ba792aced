# shellcheck shell=bash
# The folders of the other systems, and DeepSpeed's settings. Sourced after tools/lib.sh; exports
# PEERS_HOME, PEERS_VENV, PEERS_PY, PEERS_OPS and the variables that DeepSpeed reads.

PEERS_HOME=$MEMTIDE_CACHE/peers
PEERS_VENV=$PEERS_HOME/venv
PEERS_PY=$PEERS_VENV/bin/python
PEERS_OPS=$PEERS_HOME/ops
export PEERS_HOME PEERS_VENV PEERS_PY PEERS_OPS

# DeepSpeed runs on the CPU even where there is a GPU. Its own allocator locks pages, as torch's
# needs a GPU.
export DS_ACCELERATOR=cpu DS_PIN_MEMORY_BACKEND=native
export TORCH_EXTENSIONS_DIR=$PEERS_OPS MAX_JOBS=${MEMTIDE_JOBS:-2}
# DeepSpeed calls ninja, which is installed in the environment.
export PATH=$PEERS_VENV/bin:$PATH
