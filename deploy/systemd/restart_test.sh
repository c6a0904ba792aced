#!/bin/bash
# Runs the unit under a real systemd in new namespaces: a job outlives kill -9 and systemctl restart,
# but not systemctl stop. $1: the unit; $2: the daemon; $3: a program that trains and prints "at STEP"
# (tests/integration/stepper.cc). Skipped, with the reason, where this user may not make such
# namespaces.
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
  for directory in /run /tmp /var/lib /var/log; do mount -t tmpfs memtide-test "$directory"; done
  mkdir -p /run/systemd/system /run/lock
  flags='--device=none --host-pool=20MiB --ssd-pool=512MiB --metrics-address=off'
  sed -e "s|/usr/bin/memtided|$work/memtided|; s|\$MEMTIDED_FLAGS|$flags|" \
    -e 's/^User=.*/User=root/; s/^Group=.*/Group=root/; /modprobe@/d' \
    "$work/unit" >/run/systemd/system/memtided.service
  cat >/run/systemd/system/test.service <<END
[Unit]
DefaultDependencies=no
Requires=systemd-journald.service
After=systemd-journald.service
[Service]
Type=oneshot
ExecStart=$work/test inside $work
END
  cat >/run/systemd/system/test.target <<END
[Unit]
DefaultDependencies=no
AllowIsolate=yes
Wants=test.service
END
  export container=memtide-test
  exec /lib/systemd/systemd --system --unit=test.target --log-level=warning --show-status=0
fi

skip() {
  echo "SKIPPED: $*"
  exit 0
}
[[ $(id -u) == 0 ]] || skip "only root can run systemd"
[[ -x /lib/systemd/systemd ]] || skip "there is no systemd"
unshare --fork --pid --mount --mount-proc mount -t tmpfs none /tmp 2>/dev/null ||
  skip "namespaces are refused here"

# Not under /tmp, which is another one inside.
work=$(mktemp -d /var/cache/memtide-test-XXXXXX)
trap 'rm -rf "$work"' EXIT
cp "$1" "$work/unit"
cp "$2" "$work/memtided"
cp "$3" "$work/stepper"
cp "$0" "$work/test"
chmod -R u+rwx "$work"
unshare --fork --kill-child --pid --mount --mount-proc \
  bash "$work/test" boot "$work" </dev/null >"$work/boot" 2>&1 &
systemd=$!
for ((i = 0; i < 600; ++i)); do
  if grep -qE '^(PASSED|FAILED)' "$work/said" 2>/dev/null; then break; fi
  kill -0 "$systemd" 2>/dev/null || break
  sleep 0.1
done
kill -KILL "$systemd" 2>/dev/null || true
wait "$systemd" 2>/dev/null || true
cat "$work/said" 2>/dev/null || cat "$work/boot"
grep -q '^PASSED' "$work/said"
