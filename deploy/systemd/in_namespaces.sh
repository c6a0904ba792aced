#!/bin/bash
# Functions that are shared by tests that boot a systemd in new namespaces. Such a test is one
# script of three parts:
#
#   outside   fills the folder $work, with itself as $work/test and this file, and calls run_test
#   boot      the first process of the namespaces: prepares them, and calls boot_systemd
#   inside    started by that systemd: tests, and ends with a line PASSED or FAILED in $work/said

skip() {
  echo "SKIPPED: $*"
  exit 0
}

# Outside: skips the test where this user may not make the namespaces.
need_systemd_in_namespaces() {
  [[ $(id -u) == 0 ]] || skip "only root can run systemd"
  [[ -x /lib/systemd/systemd ]] || skip "there is no systemd"
  unshare --fork --pid --mount --mount-proc mount -t tmpfs none /tmp 2>/dev/null ||
    skip "namespaces are refused here"
}

# Outside: runs the test. $1: $work; $2: the seconds that it may take; the rest: more options of
# unshare.
run_test() {
  local work=$1 most_s=$2 systemd
  shift 2
  unshare --fork --kill-child --pid --mount --mount-proc "$@" \
    bash "$work/test" boot "$work" </dev/null >"$work/boot" 2>&1 &
  systemd=$!
  for ((i = 0; i < 10 * most_s; ++i)); do
    if grep -qE '^(PASSED|FAILED)' "$work/said" 2>/dev/null; then break; fi
    kill -0 "$systemd" 2>/dev/null || break
    sleep 0.1
  done
  kill -KILL "$systemd" 2>/dev/null || true
  wait "$systemd" 2>/dev/null || true
  cat "$work/said" 2>/dev/null || cat "$work/boot"
  grep -q '^PASSED' "$work/said"
}

# Boot: writes the units that run the part inside. $1: the root directory that it will have; $2: where
# $work is then.
write_test_units() {
  mkdir -p "$1/run/systemd/system" "$1/run/lock"
  cat >"$1/run/systemd/system/test.service" <<END
[Unit]
DefaultDependencies=no
Requires=systemd-journald.service
After=systemd-journald.service
[Service]
Type=oneshot
ExecStart=$2/test inside $2
END
  cat >"$1/run/systemd/system/test.target" <<END
[Unit]
DefaultDependencies=no
AllowIsolate=yes
Wants=test.service
END
}

# Boot: this process becomes systemd.
boot_systemd() {
  # It mounts credentials in a namespace of its own, from where they come here.
  mount --make-rshared /
  export container=memtide-test
  exec /lib/systemd/systemd --system --unit=test.target --log-level=warning --show-status=0
}
