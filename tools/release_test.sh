#!/bin/bash
# tools/release refuses what is no release, and makes the commit and the tag of what is one. $1: the
# script, beside which lib.sh lies. A small repository takes the place of the checkout, and a program
# that makes files takes the place of Bazel.
set -euo pipefail

tools=$(realpath "$(dirname "$1")")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
  echo "$*" >&2
  cat "$scratch/output" >&2
  exit 1
}

mkdir -p "$scratch/checkout/tools" "$scratch/bin" "$scratch/built/deploy"
cp "$tools/release" "$tools/lib.sh" "$scratch/checkout/tools"
cat >"$scratch/bin/bazel" <<BAZEL
#!/bin/bash
case \$1 in
  build)
    cd "$scratch/built/deploy"
    touch memtide.deb memtide.tar.gz memtide.whl
    echo "memtide-\$(cat "$scratch/checkout/VERSION")-py3-none-any.whl" >wheel_name.txt
    ;;
  test)
    if [[ -e $scratch/tests_fail ]]; then
      echo "a test fails"
      exit 3
    fi
    ;;
  info) echo "$scratch/built" ;;
esac
BAZEL
chmod 755 "$scratch/bin/bazel"
export PATH=$scratch/bin:$PATH HOME=$scratch
export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@localhost GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@localhost

cd "$scratch/checkout"
git init -q -b main
echo 0.1.0 >VERSION
echo /out >.gitignore
printf '# Changelog\n\n## [Unreleased]\n\n- A wheel.\n' >CHANGELOG.md
git add -A
git commit -q -m start

release() { tools/release "$@" >"$scratch/output" 2>&1 </dev/null; }

# refused REASON ARGUMENTS...: the script prints the reason, and leaves the checkout unchanged.
refused() {
  local reason=$1 before after
  shift
  before=$(git status --porcelain; git rev-parse HEAD; git tag)
  if release "$@"; then fail "not refused: $*"; fi
  grep -q -- "$reason" "$scratch/output" || fail "\"$reason\" is not said"
  after=$(git status --porcelain; git rev-parse HEAD; git tag)
  [[ $after == "$before" ]] || fail "the checkout changed: $after"
}

refused "is not MAJOR.MINOR.PATCH" 1.0
refused "is older than 0.1.0" 0.0.9
refused "tools/release 0.2.0"
touch stray
refused "the tree has changes" 0.2.0
rm stray
touch "$scratch/tests_fail"
refused "a test fails" 0.2.0
rm "$scratch/tests_fail"

release --dry-run 0.2.0 || fail "the dry run failed"
[[ -z $(git status --porcelain) && -z $(git tag) && $(cat VERSION) == 0.1.0 ]] ||
  fail "the dry run changed the checkout"
[[ -e out/release/memtide-0.2.0-py3-none-any.whl ]] || fail "the dry run left no wheel"

release 0.2.0 || fail "the release failed"
[[ $(git show v0.2.0:VERSION) == 0.2.0 ]] || fail "the tag does not have the version"
[[ $(git log -1 --format=%s) == "Release 0.2.0" && -z $(git status --porcelain) ]] || fail "no commit"
grep -q '^## \[0.2.0\] - 20' CHANGELOG.md || fail "the changelog has no section"
for file in memtide_0.2.0_amd64.deb memtide-0.2.0.tar.gz memtide-0.2.0-py3-none-any.whl SHA256SUMS; do
  [[ -e out/release/$file ]] || fail "$file is missing"
done

refused "the tag v0.2.0 exists" 0.2.0
refused "has nothing under" 0.3.0
