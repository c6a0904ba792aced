#!/bin/bash
# The probes measure what the product does: on the fake CUDA, from which GPU, context and process
# their answers come. $1: gpu_probe_fake_cuda.
set -euo pipefail

probe=$1
failures=0
export GPU_PROBE_QUICK=1 XDG_CACHE_HOME=$TEST_TMPDIR/cache
export MEMTIDE_FAKE_CUDA=dir=$TEST_TMPDIR/gpu,devices=2,delay_us=20

fail() {
  echo "$1" >&2
  failures=$((failures + 1))
}

uuid=$(CUDA_VISIBLE_DEVICES=1 "$probe" --uuid)
[[ $uuid == GPU-*01 ]] || fail "the GPU of the probes is $uuid, where the first one is hidden"

# A probe that cannot have a context has no figure.
if rows=$(MEMTIDE_FAKE_CUDA_FAULTS=cuDevicePrimaryCtxRetain:1=100 "$probe" mapping 2>/dev/null); then
  fail "mapping has not asked for a context"
fi
[[ $rows != *"map 2 MiB"* ]] || fail "mapping was measured without a context"

rows=$("$probe" copies)
[[ $rows == *"64 MiB both ways at once, against plain pinned copies"* ]] || fail "no copies: $rows"
# The process of the daemon's device asks a GPU that it has not met, and keeps the answers.
compgen -G "$XDG_CACHE_HOME/memtide/gpus/*" >/dev/null || fail "copies were of the probe's process"

exit $((failures > 0))
