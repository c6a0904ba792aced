#!/bin/bash
# The package has the expected files, and its programs run. $1: memtide.deb.
set -euo pipefail

deb=$1
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
dpkg-deb -x "$deb" "$root"

fail() {
  echo "$*" >&2
  exit 1
}

while read -r mode path; do
  [[ -e $root/$path ]] || fail "$path is missing"
  found=$(stat -c %a "$root/$path")
  [[ $found == "$mode" ]] || fail "$path has mode $found, not $mode"
done <<'FILES'
755 usr/bin/memtided
755 usr/bin/memtide
755 usr/bin/memtide-replay
644 usr/lib/x86_64-linux-gnu/libmemtide.so.0
644 usr/include/memtide.h
644 usr/lib/memtide/python/memtide/__init__.py
644 usr/lib/memtide/python/memtide/_cli/main.py
644 lib/systemd/system/memtided.service
644 usr/share/memtide/grafana/memtide.json
644 usr/share/memtide/prometheus/rules.yml
644 usr/share/doc/memtide/copyright
FILES
link=$(readlink "$root/usr/lib/x86_64-linux-gnu/libmemtide.so")
[[ $link == libmemtide.so.0 ]] || fail "libmemtide.so points to $link"

version=$(dpkg-deb -f "$deb" Version)
said=$("$root/usr/bin/memtided" --version)
[[ $said == "memtided $version ("*"CUDA"*")" ]] || fail "the package is $version, the daemon says \"$said\""

depends=$(dpkg-deb -f "$deb" Depends)
[[ $depends == *libgrpc++* && $depends == *libprotobuf* ]] || fail "Depends: $depends"

for script in postinst prerm; do
  sh -n <(dpkg-deb --ctrl-tarfile "$deb" | tar -xO "./$script") || fail "$script does not parse"
done
