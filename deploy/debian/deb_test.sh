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
644 lib/udev/rules.d/60-memtide.rules
644 etc/default/memtided
644 etc/needrestart/conf.d/memtide.conf
755 usr/lib/memtide/before-start
644 lib/systemd/system/memtide-metrics.service
644 lib/systemd/system/memtide-metrics-token.service
755 usr/lib/memtide/make_metrics_token
644 usr/lib/memtide/python/memtide/_metrics/__main__.py
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

conffiles=$(dpkg-deb --ctrl-tarfile "$deb" | tar -xO ./conffiles)
[[ $conffiles == $'/etc/default/memtided\n/etc/needrestart/conf.d/memtide.conf' ]] ||
  fail "conffiles: $conffiles"

# The group of the udev rule is the one that postinst makes, and that may connect to the daemon.
rule=$(grep -v '^#' "$root/lib/udev/rules.d/60-memtide.rules")
[[ $rule == 'KERNEL=="userfaultfd", SUBSYSTEM=="misc", GROUP="memtide", MODE="0660"' ]] ||
  fail "the udev rule is $rule"
grep -q '^Group=memtide$' "$root/lib/systemd/system/memtided.service" || fail "no Group=memtide"

for script in postinst prerm postrm; do
  sh -n <(dpkg-deb --ctrl-tarfile "$deb" | tar -xO "./$script") || fail "$script does not parse"
done
