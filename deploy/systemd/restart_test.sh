#!/bin/bash
# Runs the unit under a real systemd in new namespaces (in_namespaces.sh, $1): a job outlives kill -9
# and systemctl restart, but not systemctl stop. $2: the unit; $3: the daemon; $4: a program that
# trains and prints "at STEP" (tests/integration/stepper.cc).
set -euo pipefail

if [[ ${1-} == inside ]]; then
  # The systemd in the namespaces starts this part. The part outside reads its output.
  work=$2
  exec >"$work/said" 2>&1
  fail() {
    echo "FAILED: $*"
    exit 1
  }
  # Trains for two seconds; $1: whether the step found is 0 ("new") or the last one said ("old").
  last=0
  train() {
    { timeout -s KILL 2 "$work/stepper" /run/memtide >"$work/steps" || true; } 2>/dev/null
    local found
    found=$(sed -n '1s/^at //p' "$work/steps")
    echo "found $found, last was $last"
    if [[ $1 == new ]]; then
      ((found == 0)) || fail "it should have begun anew"
    else
      ((found == last || found == last + 1)) || fail "the job was not found as it was left"
    fi
    last=$(sed -n 's/^at //p' "$work/steps" | tail -n 1)
    ((last > found)) || fail "no step was made"
  }
  systemctl start memtided
  train new
  pid=$(systemctl show memtided --property=MainPID --value)
  kill -KILL "$pid"
  for ((i = 0; i < 100; ++i)); do
    now=$(systemctl show memtided --property=MainPID --value)
    [[ $now != "$pid" && $(systemctl is-active memtided) == active ]] && break
    sleep 0.1
  done
  train old
  systemctl restart memtided
  train old
  systemctl stop memtided
  systemctl start memtided
  train new
  echo PASSED
  exit
fi

if [[ ${1-} == boot ]]; then
  # This is the first process of the namespaces: systemd writes and cleans nothing of the machine's.
  work=$2
  # shellcheck source=deploy/systemd/in_namespaces.sh
  source "$work/in_namespaces.sh"
  for directory in /run /tmp /var/lib /var/log; do mount -t tmpfs memtide-test "$directory"; done
  write_test_units "" "$work"
  flags='--device=none --host-pool=20MiB --ssd-pool=512MiB --metrics-address=off'
  sed -e "s|/usr/bin/memtided|$work/memtided|; s|\$MEMTIDED_FLAGS|$flags|" \
    -e 's/^User=.*/User=root/; s/^Group=.*/Group=root/; /modprobe@/d' \
    "$work/unit" >/run/systemd/system/memtided.service
  boot_systemd
fi

# shellcheck source=deploy/systemd/in_namespaces.sh
source "$1"
need_systemd_in_namespaces
# Not under /tmp, which is another one inside.
work=$(mktemp -d /var/cache/memtide-test-XXXXXX)
trap 'rm -rf "$work"' EXIT
cp "$1" "$work"
cp "$2" "$work/unit"
cp "$3" "$work/memtided"
cp "$4" "$work/stepper"
cp "$0" "$work/test"
chmod -R u+rwx "$work"
run_test "$work" 60
