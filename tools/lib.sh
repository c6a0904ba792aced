# shellcheck shell=bash
# What the scripts of this folder share. Sourced, not run; sets MEMTIDE_ROOT and MEMTIDE_CACHE.

set -euo pipefail

MEMTIDE_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
MEMTIDE_CACHE=${MEMTIDE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/memtide}
MEMTIDE_VENV=$MEMTIDE_CACHE/venv
MEMTIDE_PY=$MEMTIDE_VENV/bin/python
export MEMTIDE_ROOT MEMTIDE_CACHE MEMTIDE_VENV MEMTIDE_PY

# Shared by every checkout of this user. Bazel wants an absolute path.
_bazel_flags=(--config=ci "--disk_cache=$MEMTIDE_CACHE/bazel" "--jobs=${MEMTIDE_JOBS:-2}")

bazel_build() { bazel build "${_bazel_flags[@]}" "$@"; }

bazel_test() {
  bazel test "${_bazel_flags[@]}" "--local_test_jobs=${MEMTIDE_JOBS:-2}" "$@"
}

# Where the outputs of these flags lie: bazel_bin -c opt.
bazel_bin() { bazel info "$@" bazel-bin 2>/dev/null; }

# Whether Bazel will find a CUDA toolkit (bazel/cuda_configure.bzl).
has_cuda() { [[ -e ${CUDA_HOME:-/usr/local/cuda}/include/cuda.h ]]; }

# The tracked files whose names match the patterns, one a line; deleted ones left out.
tracked() {
  local file
  git -C "$MEMTIDE_ROOT" ls-files -- "$@" | while IFS= read -r file; do
    if [[ -f $MEMTIDE_ROOT/$file ]]; then printf '%s\n' "$file"; fi
  done
}

# The tracked shell scripts: named .sh, or without a suffix and with a shell's first line.
tracked_scripts() {
  local file line
  while IFS= read -r file; do
    case ${file##*/} in
      *.sh) printf '%s\n' "$file" ;;
      *.*) ;;
      *)
        IFS= read -r line <"$MEMTIDE_ROOT/$file" || true
        if [[ $line =~ ^#!.*[/\ ](ba)?sh ]]; then printf '%s\n' "$file"; fi
        ;;
    esac
  done < <(tracked '*')
}
