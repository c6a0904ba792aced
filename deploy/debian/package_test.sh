#!/bin/bash
# Installs, upgrades, removes and purges the package under a real systemd, in new namespaces
# (systemd/in_namespaces.sh, $1) over a copy of this machine's file system that is only in memory:
# nothing of the machine is changed. $2: memtide.deb; $3: a program that trains and prints "at STEP"
# (tests/integration/stepper.cc).
set -euo pipefail
export PATH=/usr/sbin:/usr/bin:/sbin:/bin

if [[ ${1-} == inside ]]; then
  # The systemd in the namespaces starts this part. The part outside reads its output.
  work=$2
  exec >"$work/said" 2>&1
  export DEBIAN_FRONTEND=noninteractive
  note=/run/memtided.restart-required
  fail() {
    echo "FAILED: $*"
    exit 1
  }
  property() { systemctl show memtided --property="$1" --value; }
  # dpkg's output is shown where it ends otherwise than expected.
  dpkg_ends() {
    local expected=$1 status=0
    shift
    dpkg --force-confold --force-depends "$@" >"$work/dpkg" 2>&1 || status=$?
    [[ $((status != 0)) == "$expected" ]] && return
    cat "$work/dpkg"
    journalctl --no-pager -u memtided | tail -n 20
    fail "dpkg $* ended with $status"
  }
  # Trains in the background, and waits for a step. $1: whether it begins anew or goes on.
  last=0
  train() {
    : >"$work/steps"
    "$work/stepper" /run/memtide >"$work/steps" 2>&1 &
    stepper=$!
    for ((i = 0; i < 100; ++i)); do
      [[ $(grep -c '^at ' "$work/steps") -ge 2 ]] && break
      sleep 0.1
    done
    local found
    found=$(sed -n '1s/^at //p' "$work/steps")
    [[ -n $found ]] || fail "the script did not train: $(cat "$work/steps")"
    if [[ $1 == anew ]]; then
      ((found == 0)) || fail "it should have begun anew, not at $found"
    else
      ((found >= last)) || fail "it went on at $found, not at $last"
    fi
  }
  end_training() {
    kill -KILL "$stepper"
    wait "$stepper" 2>/dev/null || true
    last=$(sed -n 's/^at //p' "$work/steps" | tail -n 1)
    # The session ends when the kernel has closed the sockets.
    for ((i = 0; i < 100; ++i)); do
      status=0
      memtide idle >"$work/idle" || status=$?
      ((status == 4)) && return
      sleep 0.1
    done
    fail "no job waits: $(cat "$work/idle")"
  }

  echo 'MEMTIDED_FLAGS="--device=none --host-pool=20MiB --ssd-pool=64MiB --metrics-address=off"' \
    >/etc/default/memtided
  dpkg_ends 0 --install "$work/1.deb"
  [[ $(property ActiveState) == active ]] || fail "it does not run: $(systemctl status memtided)"
  systemctl is-enabled --quiet memtided || fail "it is not enabled"
  pid=$(property MainPID)
  [[ $(ps -o user= -p "$pid") == memtide ]] || fail "it does not run as memtide"
  # Not every container may lower the score itself.
  [[ $(property OOMScoreAdjust) == -900 ]] || fail "OOMScoreAdjust is $(property OOMScoreAdjust)"
  [[ $(property TasksMax) == 512 ]] || fail "TasksMax is $(property TasksMax)"
  grep -q host-pool=20MiB /etc/default/memtided || fail "the operator's settings are gone"
  memtide idle >/dev/null || fail "a new daemon is not idle"

  echo "an upgrade restarts an idle daemon"
  dpkg_ends 0 --install "$work/2.deb"
  [[ $(property MainPID) != "$pid" ]] || fail "the old daemon still runs"
  pid=$(property MainPID)

  echo "an upgrade leaves a daemon that is used"
  train anew
  dpkg_ends 0 --install "$work/3.deb"
  [[ $(property MainPID) == "$pid" ]] || fail "the daemon was restarted under a session"
  grep -q 'was not restarted' "$work/dpkg" || fail "nothing was said: $(cat "$work/dpkg")"
  grep -q "job 'killed'" "$note" || fail "there is no note"
  before=$(grep -c '^at ' "$work/steps")
  for ((i = 0; i < 100; ++i)); do
    [[ $(grep -c '^at ' "$work/steps") -gt $before ]] && break
    sleep 0.1
  done
  [[ $(grep -c '^at ' "$work/steps") -gt $before ]] || fail "the script trains no more"

  echo "a package whose daemon is used is not removed"
  dpkg_ends 1 --remove memtide
  grep -q 'systemctl stop memtided' "$work/dpkg" || fail "it does not say what to do"
  [[ $(property MainPID) == "$pid" ]] || fail "the daemon was stopped"

  echo "an upgrade takes over jobs that wait"
  end_training
  dpkg_ends 0 --install "$work/2.deb"
  [[ $(property MainPID) != "$pid" ]] || fail "the old daemon still runs"
  [[ ! -e $note ]] || fail "the note is still there"
  train on
  end_training

  echo "settings that cannot work lose no job that waits"
  sed -i 's/--host-pool=20MiB/--host-pool=none/' /etc/default/memtided
  systemctl restart memtided 2>/dev/null && fail "it started"
  for ((i = 0; i < 100; ++i)); do
    (($(property NRestarts) >= 2)) && break
    sleep 0.1
  done
  (($(property NRestarts) >= 2)) || fail "systemd does not start it again"
  sed -i 's/--host-pool=none/--host-pool=20MiB/' /etc/default/memtided
  systemctl restart memtided
  train on
  end_training

  echo "a package with jobs that wait is not removed before the operator gives them up"
  dpkg_ends 1 --remove memtide
  systemctl stop memtided
  dpkg_ends 0 --install "$work/3.deb"
  [[ $(property ActiveState) == inactive ]] || fail "an upgrade started what was stopped"
  dpkg_ends 0 --remove memtide
  [[ ! -e /lib/systemd/system/memtided.service && ! -e /usr/bin/memtided ]] || fail "files stay"
  grep -q host-pool=20MiB /etc/default/memtided || fail "the removal took the settings"
  [[ -e /var/lib/memtide/.memtide-store ]] || fail "the removal took the daemon's directory"

  echo "a purge leaves nothing but the user"
  dpkg_ends 0 --purge memtide
  for path in /etc/default/memtided /etc/needrestart/conf.d/memtide.conf /usr/lib/memtide \
    /var/cache/memtide /var/lib/memtide /var/lib/memtide-settings; do
    [[ ! -e $path ]] || fail "the purge left $path"
  done
  id memtide >/dev/null || fail "files elsewhere would belong to nobody"
  echo PASSED
  exit
fi

if [[ ${1-} == boot ]]; then
  # This is the first process of the namespaces.
  work=$2
  # shellcheck source=deploy/systemd/in_namespaces.sh
  source "$work/in_namespaces.sh"
  mount -t tmpfs memtide-test "$work/layer"
  mkdir "$work/layer/"{upper,work,root}
  root=$work/layer/root
  mount -t overlay -o "lowerdir=/,upperdir=$work/layer/upper,workdir=$work/layer/work" overlay "$root"
  mount --rbind /dev "$root/dev"
  mount --rbind /sys "$root/sys"
  mount -t proc proc "$root/proc"
  rm -rf "$root/var/lib/memtide"
  for directory in run tmp var/log; do mount -t tmpfs memtide-test "$root/$directory"; done
  mount --bind "$work" "$root/mnt"
  write_test_units "$root" /mnt
  mkdir -p "$root/var/lib/dpkg/updates"
  mkdir -p "$root/run/old"
  cd "$root"
  pivot_root . run/old
  umount -l /run/old
  boot_systemd
fi

# shellcheck source=deploy/systemd/in_namespaces.sh
source "$1"
need_systemd_in_namespaces
command -v dpkg >/dev/null || skip "there is no dpkg"

# Not under /tmp, which is another one inside.
work=$(mktemp -d /var/cache/memtide-test-XXXXXX)
trap 'rm -rf "$work"' EXIT
mkdir "$work/layer" "$work/package"
unshare --fork --pid --mount --mount-proc bash -ec "
  mount -t tmpfs none $work/layer && cd $work/layer && mkdir upper work root &&
  mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work overlay root" >"$work/tried" 2>&1 ||
  skip "namespaces with an overlay of / are refused here: $(tail -n 1 "$work/tried")"

cp "$1" "$work"
cp "$3" "$work/stepper"
cp "$0" "$work/test"
dpkg-deb -R "$2" "$work/package"
for version in 1 2 3; do
  sed -i "s/^Version: .*/Version: 0.$version/" "$work/package/DEBIAN/control"
  dpkg-deb --root-owner-group -Znone -b "$work/package" "$work/$version.deb" >/dev/null
done
chmod -R u+rwx "$work"
run_test "$work" 120
