# shellcheck shell=bash
# Functions that the scripts of this folder share. Sourced; sets MEMTIDE_ROOT and MEMTIDE_CACHE.

set -euo pipefail

MEMTIDE_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
MEMTIDE_CACHE=${MEMTIDE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/memtide}
MEMTIDE_VENV=$MEMTIDE_CACHE/venv
MEMTIDE_PY=$MEMTIDE_VENV/bin/python
export MEMTIDE_ROOT MEMTIDE_CACHE MEMTIDE_VENV MEMTIDE_PY

# Shared by every checkout of this user. Bazel wants an absolute path.
_bazel_flags=(--config=ci "--disk_cache=$MEMTIDE_CACHE/bazel" "--jobs=${MEMTIDE_JOBS:-2}")

bazel_build() { bazel build "${_bazel_flags[@]}" "$@" || after_failure $?; }

free_mib() { df --output=avail -m "$1" | tail -n 1; }

# Prints the first of these folders whose disk is full, if one is.
full_disk() {
  local folder
  for folder in "$MEMTIDE_CACHE" "${XDG_CACHE_HOME:-$HOME/.cache}" "${TMPDIR:-/tmp}" /var; do
    if [[ -d $folder ]] && (($(free_mib "$folder") < 64)); then
      echo "$folder" && return
    fi
  done
}

# after_failure STATUS: returns it, and says so where a full disk has made a build fail.
after_failure() {
  local full
  full=$(full_disk)
  if [[ $full ]]; then
    echo "memtide: the disk of $full is full: free some; what has been built is not built again" >&2
  fi
  return "$1"
}

# Whether the targets are built. Not if another Bazel command runs in this checkout, which is not
# waited for.
bazel_up_to_date() {
  bazel --noblock_for_lock build "${_bazel_flags[@]}" --check_up_to_date "$@" >/dev/null 2>&1
}

bazel_test() {
  bazel test "${_bazel_flags[@]}" "--local_test_jobs=${MEMTIDE_JOBS:-2}" "$@" || after_failure $?
}

# Targets that tools/memtide builds.
MEMTIDE_TARGETS=(//client:libmemtide.so //daemon:memtided //daemon/replay:memtide-replay)

# Asks Bazel, and notes a yes.
tools_are_built() {
  local began
  began=$(date +%s)
  (cd "$MEMTIDE_ROOT" && bazel_up_to_date -c opt "${MEMTIDE_TARGETS[@]}") && note_built "$began"
}

# The file that says since when the tools of this checkout are built, and where they are.
_built_note() {
  local digest
  digest=$(printf '%s' "$MEMTIDE_ROOT" | sha256sum)
  printf '%s/built/%s' "$MEMTIDE_CACHE" "${digest:0:16}"
}

# note_built BEGAN: a source that changes while it is built is newer than BEGAN, in seconds.
note_built() {
  local note
  note=$(_built_note)
  mkdir -p "${note%/*}"
  (cd "$MEMTIDE_ROOT" && bazel_bin -c opt) >"$note"
  touch -d "@$1" "$note"
}

# Prints the folder of what tools/memtide has built.
built_bin() { cat "$(_built_note)"; }

# Whether no source is newer than what was built, without Bazel, whose server takes seconds to start.
nothing_changed() {
  local note bin newer
  note=$(_built_note)
  bin=$(cat "$note" 2>/dev/null) && [[ -x $bin/daemon/memtided && -e $bin/client/libmemtide.so &&
    -x $bin/daemon/replay/memtide-replay ]] || return 1
  newer=$(cd "$MEMTIDE_ROOT" && find . -maxdepth 6 \( -name .git -o -name pyclient -o -name tests \) \
    -prune -o -type f \( -name '*.cc' -o -name '*.h' -o -name '*.proto' -o -name '*BUILD' -o -name VERSION \
    -o -name WORKSPACE -o -name '*.bzl' -o -name '*.bazelrc' \) -newer "$note" -print -quit)
  [[ ! $newer ]]
}

# Prints the process of this checkout's Bazel server, if it runs.
bazel_server() { pgrep -f -- "--workspace_directory=$MEMTIDE_ROOT( |\$)" 2>/dev/null || true; }

# The targets that a Bazel query names, one a line.
bazel_query() { bazel query --noshow_progress --color=no --curses=no "$@"; }

# Prints the folder of the outputs of these flags: bazel_bin -c opt.
bazel_bin() { bazel info "$@" bazel-bin 2>/dev/null; }

# Whether Bazel will find a CUDA toolkit (bazel/cuda_configure.bzl).
has_cuda() { [[ -e ${CUDA_HOME:-/usr/local/cuda}/include/cuda.h ]]; }

# Builds the programs and libraries that the Python tests run, and exports their paths.
build_for_pytest() {
  local targets=(//client:libmemtide.so //daemon:memtided //daemon/replay:memtide-replay)
  if has_cuda; then targets+=(//client:libmemtide_fake_cuda.so //daemon:memtided_fake_cuda); fi
  bazel_build -c opt "${targets[@]}"
  local bin
  bin=$(bazel_bin -c opt)
  export MEMTIDE_LIBRARY=$bin/client/libmemtide.so MEMTIDED=$bin/daemon/memtided
  export MEMTIDE_REPLAY=$bin/daemon/replay/memtide-replay
  if has_cuda; then
    export MEMTIDE_LIBRARY_FAKE_CUDA=$bin/client/libmemtide_fake_cuda.so
    export MEMTIDED_FAKE_CUDA=$bin/daemon/memtided_fake_cuda
  fi
}

# run_pytest PYTHON ARGUMENTS...: after build_for_pytest.
run_pytest() {
  local python=$1
  shift
  PYTHONPATH=$MEMTIDE_ROOT/pyclient PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 \
    "$python" -m pytest -p no:cacheprovider "$@"
}

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
