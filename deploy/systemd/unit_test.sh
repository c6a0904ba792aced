#!/bin/bash
# systemd-analyze must accept the units without a warning, and rate their exposure at most 0.8
# (memtided.service) and 1.2 (memtide-metrics.service, which needs the network). $1: memtided.service,
# beside the others; $2: the daemon, and $3: before-start, in place of the installed ones.
set -euo pipefail

unit=$1 daemon=$(realpath "$2") before_start=$(realpath "$3") units=$(dirname "$1")
if ! command -v systemd-analyze >/dev/null; then
  echo "systemd-analyze is not installed (Debian: apt install systemd)" >&2
  exit 1
fi
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
for each in "$units"/*.service; do
  sed "s|^ExecStart=/usr/bin/memtided|ExecStart=$daemon|
    s|^ExecStartPre=-+/usr/lib/memtide/before-start|ExecStartPre=-+$before_start|
    s|^ExecStart=/usr/lib/memtide/make_metrics_token|ExecStart=$(realpath "$units")/make_metrics_token.sh|" \
    "$each" >"$directory/$(basename "$each")"
done
if ! grep -q "^ExecStart=$daemon" "$directory/memtided.service"; then
  echo "the unit does not start /usr/bin/memtided" >&2
  exit 1
fi

complaints=$(systemd-analyze verify "$directory"/*.service 2>&1 | grep memtide || true)
if [[ -n $complaints ]]; then
  printf 'systemd-analyze verify:\n%s\n' "$complaints" >&2
  exit 1
fi

# In tenths.
for rated in memtided:8 memtide-metrics:12; do
  if ! report=$(systemd-analyze security --offline=true --threshold="${rated#*:}" --no-pager \
    "$directory/${rated%:*}.service" 2>&1); then
    printf '%s\n' "$report" >&2
    exit 1
  fi
  tail -n 1 <<<"$report"
done

# Memory pressure of the machine neither ends the daemon nor swaps it out, and it cannot take every
# thread.
for line in OOMScoreAdjust=-900 OOMPolicy=continue ManagedOOMPreference=omit TasksMax=512 \
  IOWeight=200 StartLimitIntervalSec=0 MemorySwapMax=0; do
  grep -qx "$line" "$unit" || { echo "the unit lacks $line" >&2; exit 1; }
done

# Every flag that the unit names is one that the daemon knows.
flags=$(sed -n 's/^ExecStart=//p' "$unit" | grep -o -- '--[a-z-]*')
help=$("$daemon" --help)
for flag in $flags; do
  grep -q -- "$flag " <<<"$help" || { echo "the daemon has no flag $flag" >&2; exit 1; }
done
