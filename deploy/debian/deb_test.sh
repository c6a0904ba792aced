#!/bin/bash
# The package has the expected files, and its programs run. $1: memtide.deb. $2: mkdeb.sh.
set -euo pipefail

deb=$1 mkdeb=$2
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
link=$(readlink "$root/usr/lib/$(uname -m)-linux-gnu/libmemtide.so")
[[ $link == libmemtide.so.0 ]] || fail "libmemtide.so points to $link"

version=$(dpkg-deb -f "$deb" Version)
said=$("$root/usr/bin/memtided" --version)
[[ $said == "memtided $version ("*"CUDA"*")" ]] || fail "the package is $version, the daemon says \"$said\""

depends=$(dpkg-deb -f "$deb" Depends)
[[ $depends == *libgrpc++* && $depends == *libprotobuf* ]] || fail "Depends: $depends"
[[ $(dpkg-deb -f "$deb" Installed-Size) -gt 4096 ]] || fail "it says no size"

# A user's Python without rich, first in PATH, runs scripts, and not the commands of the node.
mkdir "$root/first"
printf '#!/bin/sh\necho "the first Python" >&2\n' >"$root/first/python3"
chmod 755 "$root/first/python3"
for command in status idle admin doctor run plan; do
  said=$(PATH=$root/first:$PATH "$root/usr/bin/memtide" "$command" --help 2>&1 || true)
  case $command in
  run | plan) [[ $said == "the first Python" ]] || fail "memtide $command: $said" ;;
  *) [[ $said != *"the first Python"* ]] || fail "memtide $command runs with the first Python" ;;
  esac
done

# Another architecture has its own name, and folder for libraries.
mkdir "$root/bin"
printf '#!/bin/sh\necho "shlibs:Depends=libgrpc++1"\n' >"$root/bin/dpkg-shlibdeps"
chmod 755 "$root/bin/dpkg-shlibdeps"
DEB_HOST_ARCH=arm64 PATH=$root/bin:$PATH "$mkdeb" "$root/arm64.deb" 1.0 "" \
  "elf:usr/lib/MULTIARCH/libmemtide.so.0:$0" "data:etc/default/memtided:$0"
[[ $(dpkg-deb -f "$root/arm64.deb" Architecture) == arm64 ]] || fail "the package is not for arm64"
dpkg-deb -x "$root/arm64.deb" "$root/arm64"
[[ -e $root/arm64/usr/lib/aarch64-linux-gnu/libmemtide.so ]] || fail "arm64 has no libmemtide.so"

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
