#!/bin/bash
# The daemon asks a GPU that it meets, says what it found, and uses what works. $1: memtided on the
# fake CUDA.
set -euo pipefail

memtided=$1
export XDG_CACHE_HOME=$TEST_TMPDIR
failures=0

# expect FRAGMENT SETTINGS: what `memtided --ask-gpus` prints has the fragment.
expect() {
  local dir answer
  dir=$(mktemp -d /dev/shm/memtide-ask-XXXXXX)
  rm -rf "$TEST_TMPDIR/memtide"
  answer=$(MEMTIDE_FAKE_CUDA=dir=$dir,$2 "$memtided" --ask-gpus | tr '\n' ' ') || true
  rm -rf "$dir"
  [[ $answer == *"$1"* ]] && return
  printf 'with %s: "%s" is not in:\n  %s\n' "$2" "$1" "$answer" >&2
  failures=$((failures + 1))
}

expect "by descriptor: yes, by legacy IPC: yes; maps beside running work: yes (at most " delay_us=20
expect "by descriptor: no, by legacy IPC: yes;" import=no
expect "operation not supported (CUDA_ERROR_NOT_SUPPORTED): legacy CUDA IPC is used instead" import=no
expect "use --device none" import=no,open_ipc=no
expect "programs wait for all their GPU work before they map or unmap a chunk" maps_under_work=no
expect "both take turns on this GPU. Under CUDA's MPS" time_slices=yes
expect "host memory is pinned at 0.0 GB/s only" cost_us:cuMemHostRegister=400000
expect "1: Fake GPU, GPU-fb" devices=2

exit $((failures > 0))
