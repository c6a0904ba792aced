#!/bin/bash
# The tarball is small enough, and its programs run from any folder. $1: memtide.tar.gz.
set -euo pipefail

tarball=$1
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

fail() {
  echo "$*" >&2
  exit 1
}

size=$(stat -L -c %s "$tarball")
((size <= 50 << 20)) || fail "the tarball has $size bytes; at most 50 MiB"
mkdir "$root/some where"
tar -C "$root/some where" -xzf "$tarball"
home=$(echo "$root/some where"/memtide-*)

for file in "$home"/bin/* "$home"/lib/*; do
  [[ -f $file && $(head -c 4 "$file" | tail -c 3) == ELF ]] || continue
  # Every library comes from the tarball, but for the C and C++ libraries.
  strays=$(ldd "$file" | sed -nE 's/^\s*(\S+) => (.*) \(0x.*/\1 \2/p' |
    grep -v -F " $home/lib/" | grep -v -F "/../lib/" |
    grep -v -E '^(libc|libm|libdl|librt|libpthread|libresolv|libstdc\+\+|libgcc_s)\.so' || true)
  [[ -z $strays ]] || fail "$(basename "$file") takes libraries of this machine: $strays"
done

said=$("$home/bin/memtided" --version)
[[ $said == "memtided ${home##*memtide-}"* ]] || fail "the daemon says \"$said\""
python3 - "$home/lib/libmemtide.so" <<'PY' || fail "libmemtide.so cannot be loaded"
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.memtide_version.restype = ctypes.c_char_p
assert library.memtide_version()
PY
"$home/bin/memtide-replay" --help >/dev/null || fail "memtide-replay --help"
"$home/bin/memtide" --help >/dev/null 2>"$root/said" || fail "memtide --help: $(cat "$root/said")"

# A C program that is built with what the tarball has runs against its daemon.
export PKG_CONFIG_PATH="$home/lib/pkgconfig"
[[ $(pkg-config --modversion memtide) == "${home##*memtide-}" ]] || fail "memtide.pc has another version"
flags=()
eval "flags+=($(pkg-config --cflags --libs memtide))"
cc -std=c99 -Wall -Wextra -Werror "$home/examples/host_chunks.c" "${flags[@]}" -o "$root/host_chunks"
mkdir -m 700 "$root/run" "$root/ssd"
"$home/bin/memtided" --device=none --host-pool=24MiB --ssd-pool=64MiB --ssd-dir "$root/ssd" \
  --socket-dir "$root/run" >"$root/log" 2>&1 &
daemon=$!
trap 'kill "$daemon" 2>/dev/null; wait "$daemon" || true; rm -rf "$root"' EXIT
until grep -q ' serves ' "$root/log"; do
  kill -0 "$daemon" || fail "the daemon has ended: $(cat "$root/log")"
  sleep 0.1
done
said=$(LD_LIBRARY_PATH="$home/lib" "$root/host_chunks" "$root/run" 2>&1) || true
[[ $said == *"8 chunks written, evicted, and read again: all equal" ]] || fail "$said; $(cat "$root/log")"
