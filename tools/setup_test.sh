#!/bin/bash
# tools/setup says in one line what keeps it from ending. $1: the script, beside which lib.sh lies.
# Programs of this test take the place of those that would change the machine.
set -euo pipefail

tools=$(realpath "$(dirname "$1")")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/tools" "$scratch/bin" "$scratch/home"
cp "$tools/setup" "$tools/lib.sh" "$scratch/tools"
touch "$scratch/tools/requirements.txt" "$scratch/tools/requirements-test.txt"

program() {
  printf '#!/bin/bash\n%s\n' "$2" >"$scratch/bin/$1"
  chmod a+x "$scratch/bin/$1"
}

# No sudo is among them.
for name in bash cat cut dirname env flock grep mkdir rm sha256sum tail; do
  ln -s "$(command -v "$name")" "$scratch/bin/$name"
done
for name in chmod dpkg systemctl; do program "$name" ''; done
program tee 'cat >/dev/null'
program apt-get 'echo "E: Failed to fetch" >&2; exit 100'
missing='' installed='shift 2; printf "%s installed\n" "$@"'

# says LINE USER MIB PACKAGES: set-up by this user ends with this line where MIB are free on all
# disks and dpkg-query is PACKAGES.
says() {
  local line=$1 user=$2 mib=$3 packages=$4 status=0
  program id "echo $user"
  program df "printf 'Avail\\n$mib\\n'"
  program dpkg-query "$packages"
  env -i "PATH=$scratch/bin" "HOME=$scratch/home" "MEMTIDE_CACHE=$scratch/home/cache" \
    "$scratch/bin/bash" "$scratch/tools/setup" run >"$scratch/output" 2>&1 || status=$?
  if ((status != 1)) || [[ $(tail -n 1 "$scratch/output") != "setup: $line"* ]]; then
    echo "status $status; expected 1 and \"setup: $line\"" >&2
    cat "$scratch/output" >&2
    exit 1
  fi
}

could_not='these Debian packages could not be installed'
says "$could_not (is there a network?): bazel-bootstrap" 0 9000 "$missing"
says "$could_not (the disk of /tmp is full): bazel-bootstrap" 0 10 "$missing"
says 'the Python environment takes 6 GiB, and 5000 MiB are free' 0 5000 "$installed"
says 'these Debian packages are missing, and there is no sudo; as root: apt-get install bazel-boot' \
  1000 9000 "$missing"
