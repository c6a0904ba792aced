#!/bin/bash
# Runs both units under a real systemd in new namespaces: memtide-metrics gets the metrics from a
# memtided without a network, through both sandboxes, and serves them for the token alone. $1: the
# folder of the units; $2: the daemon; $3: libmemtide.so; $4: a file of pyclient/. Needs root, and
# systemd.
#
#   bazel test -c opt //deploy:metrics_test
set -euo pipefail

if [[ ${1-} == inside ]]; then
  # The systemd in the namespaces starts this part. The part outside reads its output.
  work=$2
  exec >"$work/said" 2>&1
  fail() {
    echo "FAILED: $*"
    journalctl --no-pager -n 40 -u 'memtide*' || true
    exit 1
  }
  url=http://127.0.0.1:19464/metrics
  status() { curl -s -o "$work/answer" -w '%{http_code}' "$@" "$url"; }
  ip link set lo up
  systemctl start memtided || fail "memtided does not start"
  systemctl is-active memtide-metrics || fail "memtide-metrics was not started with memtided"
  for ((i = 0; i < 100; ++i)); do
    [[ $(status) == 401 ]] && break
    sleep 0.1
  done
  [[ $(status) == 401 ]] || fail "without a token: $(status)"
  [[ $(status -H "Authorization: Bearer x$(cat "$work/etc/metrics_token")") == 401 ]] ||
    fail "with a wrong token: $(status)"
  code=$(status -H "Authorization: Bearer $(cat "$work/etc/metrics_token")")
  [[ $code == 200 ]] || fail "with the token: $code"
  grep -q '^memtide_build_info' "$work/answer" || fail "no metrics: $(cat "$work/answer")"
  metrics=$(systemctl show memtide-metrics --property=MainPID --value)
  [[ $(stat -c %u "/proc/$metrics") != 0 ]] || fail "memtide-metrics runs as root"
  daemon=$(systemctl show memtided --property=MainPID --value)
  [[ $(readlink "/proc/$daemon/ns/net") != $(readlink /proc/self/ns/net) ]] ||
    fail "memtided is in the machine's network"
  systemctl stop memtided
  systemctl is-active memtide-metrics && fail "memtide-metrics outlives memtided"
  echo PASSED
  exit
fi

if [[ ${1-} == boot ]]; then
  # This is the first process of the namespaces: systemd writes and cleans nothing of the machine's.
  work=$2
  for directory in /run /tmp /var/lib /var/log; do mount -t tmpfs memtide-test "$directory"; done
  mkdir -p /run/systemd/system /run/lock
  flags='--device=none --host-pool=20MiB --ssd-pool=64MiB' metrics_flags='--address=127.0.0.1:19464'
  for unit in memtided memtide-metrics memtide-metrics-token; do
    sed -e "s|/usr/bin/memtided|$work/memtided|; s|/etc/memtide/|$work/etc/|" \
      -e "s|\$MEMTIDED_FLAGS|$flags|; s|\$MEMTIDE_METRICS_FLAGS|$metrics_flags|" \
      -e "s|/usr/lib/memtide/make_metrics_token|$work/make_metrics_token.sh|" \
      -e "s|/usr/lib/memtide/python|$work/pyclient MEMTIDE_LIBRARY=$work/libmemtide.so|" \
      -e 's/^User=.*/User=root/; s/^Group=.*/Group=root/; /modprobe@/d' \
      -e 's/^SupplementaryGroups=.*/SupplementaryGroups=root/' \
      "$work/$unit.service" >"/run/systemd/system/$unit.service"
  done
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

# Not under /tmp, which is another one inside.
work=$(mktemp -d /var/cache/memtide-test-XXXXXX)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
cp "$1"/*.service "$1/make_metrics_token.sh" "$work"
cp "$2" "$work/memtided"
cp "$3" "$work/libmemtide.so"
cp -rL "${4%/memtide/*}" "$work/pyclient"
cp "$0" "$work/test"
chmod -R u+rwX,go+rX "$work"
chmod 755 "$work/memtided" "$work/test" "$work/make_metrics_token.sh"
unshare --fork --kill-child --pid --mount --mount-proc --net \
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
