#!/bin/bash
# The wait before a start grows with the number of restarts, up to a bound, and a daemon that has not
# failed does not wait. $1: before-start.sh. Programs that record what they are asked for take the
# place of systemctl, sleep and rm.
set -euo pipefail

script=$(realpath "$1")
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
cat >"$root/systemctl" <<'END'
#!/bin/sh
[ "$*" = "show --property=NRestarts --value memtided.service" ] && echo "$RESTARTS"
END
cat >"$root/sleep" <<'END'
#!/bin/sh
echo "$1"
END
cat >"$root/rm" <<'END'
#!/bin/sh
[ "$*" = "-f /run/memtided.restart-required" ]
END
chmod +x "$root"/*

waits=''
for restarts in 0 1 2 3 4 5 6 7 8 9 1000000; do
  waits+="$(PATH=$root:$PATH RESTARTS=$restarts sh "$script") "
done
[[ $waits == "0 0 0 1 2 4 8 16 32 32 32 " ]] || { echo "it waited $waits" >&2; exit 1; }
