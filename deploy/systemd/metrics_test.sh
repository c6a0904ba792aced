#!/bin/bash
# Runs both units under a real systemd in new namespaces (in_namespaces.sh, $1): memtide-metrics gets
# the metrics from a memtided without a network, through both sandboxes, and serves them for the
# token alone. $2: the folder of the units; $3: the daemon; $4: libmemtide.so; $5: a file of
# pyclient/.
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
  # It starts once memtided is ready, which ends the command above.
  for ((i = 0; i < 100; ++i)); do
    systemctl is-active --quiet memtide-metrics && break
    sleep 0.1
  done
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
  # shellcheck source=deploy/systemd/in_namespaces.sh
  source "$work/in_namespaces.sh"
  for directory in /run /tmp /var/lib /var/log; do mount -t tmpfs memtide-test "$directory"; done
  write_test_units "" "$work"
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
  boot_systemd
fi

# shellcheck source=deploy/systemd/in_namespaces.sh
source "$1"
need_systemd_in_namespaces

# Not under /tmp, which is another one inside.
work=$(mktemp -d /var/cache/memtide-test-XXXXXX)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
cp "$1" "$work"
cp "$2"/*.service "$2/make_metrics_token.sh" "$work"
cp "$3" "$work/memtided"
cp "$4" "$work/libmemtide.so"
cp -rL "${5%/memtide/*}" "$work/pyclient"
cp "$0" "$work/test"
chmod -R u+rwX,go+rX "$work"
chmod 755 "$work/memtided" "$work/test" "$work/make_metrics_token.sh"
run_test "$work" 60 --net
