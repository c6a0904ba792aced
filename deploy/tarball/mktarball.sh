#!/bin/bash
# Makes memtide.tar.gz: memtide with the libraries that it needs. It can be unpacked anywhere.
#
#   mktarball.sh BUNDLE OUT VERSION KIND:DESTINATION:FILE...
#
# BUNDLE: bundle_libraries.sh. KIND: elf (a program or library), program, data, or text, in which
# @VERSION@ is replaced. The libraries that the elf files need come from this machine and go to lib/,
# their licences to licenses/.
set -euo pipefail

bundle=$1 out=$2 version=$3
shift 3
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
tree=$root/memtide-$version

elf=()
for spec in "$@"; do
  IFS=: read -r kind destination file <<<"$spec"
  mode=0755
  if [[ $kind == data || $kind == text ]]; then mode=0644; fi
  install -D -m "$mode" "$file" "$tree/$destination"
  if [[ $kind == elf ]]; then elf+=("$tree/$destination"); fi
  if [[ $kind == text ]]; then sed -i "s/@VERSION@/$version/" "$tree/$destination"; fi
done
# A program that is linked with -lmemtide loads the library by its soname.
ln -s libmemtide.so.0 "$tree/lib/libmemtide.so"

"$bundle" "$tree/lib" "$tree/licenses" "${elf[@]}"

tar -C "$root" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-0}" \
  -c "memtide-$version" | gzip -9n >"$out"
