#!/bin/bash
# The answers and effects of opening a GPU where there is none, where it is hidden, and with old
# drivers.
# $1: cuda_open_probe.
set -euo pipefail

open=$1
failures=0

# expect FRAGMENT VARIABLE=VALUE... [-- DEVICE]: the answer, line ends as spaces, has the fragment.
expect() {
  local fragment=$1 answer settings=()
  shift
  while (($# > 0)) && [[ $1 != -- ]]; do
    settings+=("$1")
    shift
  done
  (($# == 0)) || shift
  answer=$(env "${settings[@]}" "$open" "$@" | tr '\n' ' ') || true
  [[ $answer == *"$fragment"* ]] && return
  printf 'with %s: "%s" is not in:\n  %s\n' "${settings[*]}" "$fragment" "$answer" >&2
  failures=$((failures + 1))
}

expect "GPU 0, Fake GPU, 1 GiB, GPU-fa616b65-2d63-7564-612d-646576696300 descriptor: OK legacy: OK" A=
expect "GPU-fb616b65-2d63-7564-612d-646576696301" MEMTIDE_FAKE_CUDA=devices=2 -- 1
expect "GPU 1, " MEMTIDE_FAKE_CUDA=devices=2 -- GPU-fb616b65
expect "GPU 0, Fake GPU, 1 GiB, GPU-fb" MEMTIDE_FAKE_CUDA=devices=2 CUDA_VISIBLE_DEVICES=1
expect 'there is no GPU "7"; there are 0 (Fake GPU, GPU-fa616b65' A= -- 7

expect "CUDA_VISIBLE_DEVICES is set and may hide it" CUDA_VISIBLE_DEVICES=
expect "there is no NVIDIA driver" MEMTIDE_FAKE_CUDA=driver=none
expect "one of CUDA 11.8 and is too old: memtide needs driver 525 (CUDA 12.0) or later" \
  MEMTIDE_FAKE_CUDA=driver=too-old
expect "modprobe nvidia-uvm" MEMTIDE_FAKE_CUDA=driver=no-uvm

expect "646576696300 descriptor: OK legacy: OK" MEMTIDE_FAKE_CUDA=driver=no-context-events
expect "nvidia-smi -c 0, or run under MPS, or --device none" MEMTIDE_FAKE_CUDA=compute_mode=exclusive
expect "descriptor: OK legacy: OK" MEMTIDE_FAKE_CUDA=compute_mode=exclusive,mps=yes
expect "prohibited, so no process can use it" MEMTIDE_FAKE_CUDA=compute_mode=prohibited
expect "1 GiB, MIG-fa616b65-2d63-7564-612d-646576696300 descriptor: OK" MEMTIDE_FAKE_CUDA=mig=yes
expect "646576696300 legacy: OK" MEMTIDE_FAKE_CUDA=descriptors=no
expect "646576696300 descriptor: OK " MEMTIDE_FAKE_CUDA=legacy_ipc=no
expect "can pass its memory to no other process" MEMTIDE_FAKE_CUDA=descriptors=no,legacy_ipc=no

exit $((failures > 0))
