#!/bin/bash
# Makes memtide.tar.gz: memtide with the libraries it needs, to be unpacked anywhere.
#
#   mktarball.sh OUT VERSION KIND:DESTINATION:FILE...
#
# KIND: elf (a program or library), program or data. The libraries that the elf files need come from
# this machine and go to lib/, found from there by where they lie ($ORIGIN); the C and C++ libraries
# do not: the machine it runs on has the same or newer ones.
set -euo pipefail

out=$1 version=$2
shift 2
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
tree=$root/memtide-$version

elf=()
for spec in "$@"; do
  IFS=: read -r kind destination file <<<"$spec"
  mode=0755
  if [[ $kind == data ]]; then mode=0644; fi
  install -D -m "$mode" "$file" "$tree/$destination"
  if [[ $kind == elf ]]; then elf+=("$tree/$destination"); fi
done

# ldd lists what is needed by what is needed, too: "NAME => PATH (ADDRESS)".
mkdir -p "$tree/lib"
while read -r name path; do
  case $name in
    libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.*) continue ;;
    libstdc++.so.* | libgcc_s.so.* | ld-linux*) continue ;;
  esac
  install -m 0755 "$path" "$tree/lib/$name"
  elf+=("$tree/lib/$name")
done < <(ldd "${elf[@]}" | sed -nE 's/^\s*(\S+) => (\S+) .*/\1 \2/p' | sort -u)

# DT_RPATH, which also holds for the libraries of libraries.
for file in "${elf[@]}"; do
  to_lib=$(realpath --relative-to "$(dirname "$file")" "$tree/lib")
  patchelf --force-rpath --set-rpath "\$ORIGIN/$to_lib" "$file"
done

tar -C "$root" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-0}" \
  -c "memtide-$version" | gzip -9n >"$out"
