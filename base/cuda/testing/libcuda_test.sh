#!/bin/bash
# One program runs with every driver's library that the loader finds, and says what is wrong with
# one that it cannot use. $1: list; $2, $3: libraries, of an old driver and of the fake one.
set -euo pipefail

list=$1 old=$2 fake=$3
failures=0

# expect FRAGMENT FOLDER VARIABLE=VALUE...: with the library in FOLDER the answer has the fragment.
expect() {
  local fragment=$1 folder=$2 answer
  shift 2
  answer=$(env LD_LIBRARY_PATH="$folder" "$@" "$list") || true
  [[ $answer == *"$fragment"* ]] && return
  printf 'with %s %s: "%s" is not in:\n  %s\n' "$folder" "$*" "$fragment" "$answer" >&2
  failures=$((failures + 1))
}

# A machine that has a driver finds it in any case.
if ! ldconfig -p | grep -q 'libcuda\.so\.1'; then
  expect "NOT_FOUND: there is no NVIDIA driver (libcuda.so.1: cannot open" "$PWD" A=
fi
expect "one of CUDA 11.8 and is too old: memtide needs driver 525 (CUDA 12.0)" \
  "$(dirname "$old")" A=
expect "0 Fake GPU GPU-fa616b65-2d63-7564-612d-646576696300 OK" "$(dirname "$fake")" A=
expect "0 Fake GPU MIG-fb616b65-2d63-7564-612d-646576696301 OK" "$(dirname "$fake")" \
  MEMTIDE_FAKE_CUDA=devices=2,mig=yes CUDA_VISIBLE_DEVICES=MIG-fb

exit $((failures > 0))
