#!/bin/bash
# systemd-analyze must accept the unit without a warning, and rate its exposure at most 1.4 (in tenths:
# 14). $1: the unit; $2: the daemon, and $3: before-start, in place of the installed ones.
set -euo pipefail

unit=$1 daemon=$(realpath "$2") before_start=$(realpath "$3")
if ! command -v systemd-analyze >/dev/null; then
  echo "systemd-analyze is not installed (Debian: apt install systemd)" >&2
  exit 1
fi
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
sed -e "s|^ExecStart=/usr/bin/memtided|ExecStart=$daemon|" \
  -e "s|^ExecStartPre=-+/usr/lib/memtide/before-start|ExecStartPre=-+$before_start|" \
  "$unit" >"$directory/memtided.service"
if ! grep -q "^ExecStart=$daemon" "$directory/memtided.service"; then
  echo "the unit does not start /usr/bin/memtided" >&2
  exit 1
fi

complaints=$(systemd-analyze verify "$directory/memtided.service" 2>&1 | grep memtided || true)
if [[ -n $complaints ]]; then
  printf 'systemd-analyze verify:\n%s\n' "$complaints" >&2
  exit 1
fi

if ! report=$(systemd-analyze security --offline=true --threshold=14 --no-pager \
  "$directory/memtided.service" 2>&1); then
  printf '%s\n' "$report" >&2
  exit 1
fi
tail -n 1 <<<"$report"

# Memory pressure of the machine does not end the daemon, and it cannot take every thread.
for line in OOMScoreAdjust=-900 OOMPolicy=continue ManagedOOMPreference=omit TasksMax=512 \
  IOWeight=200 StartLimitIntervalSec=0; do
  grep -qx "$line" "$unit" || { echo "the unit lacks $line" >&2; exit 1; }
done

# Every flag that the unit names is one that the daemon knows.
flags=$(sed -n 's/^ExecStart=//p' "$unit" | grep -o -- '--[a-z-]*')
help=$("$daemon" --help)
for flag in $flags; do
  grep -q -- "$flag " <<<"$help" || { echo "the daemon has no flag $flag" >&2; exit 1; }
done
