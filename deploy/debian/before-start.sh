#!/bin/sh
# systemd runs this as root before each start of memtided. It waits the longer the more often the
# daemon was restarted because it failed (systemd before 254 has no RestartSteps=): up to 32 s, and
# `systemctl restart` counts anew.
set -eu

rm -f /run/memtided.restart-required # postinst's note.
restarts=$(systemctl show --property=NRestarts --value memtided.service)
wait_s=0
while [ "$restarts" -gt 2 ] && [ "$wait_s" -lt 32 ]; do
  wait_s=$((wait_s ? wait_s * 2 : 1))
  restarts=$((restarts - 1))
done
sleep "$wait_s"
