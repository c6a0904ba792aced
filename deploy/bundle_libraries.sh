#!/bin/bash
# Puts the shared libraries that programs need beside them, for machines that do not have them.
#
#   bundle_libraries.sh LIBRARIES LICENSES ELF...
#
# Copies every library of this machine that an ELF needs into the folder LIBRARIES, and the copyright
# file of its Debian package into the folder LICENSES. Each ELF finds its libraries by the relative
# path from itself ($ORIGIN). The C and C++ libraries are not copied: the machine that the programs
# run on has the same or newer ones.
#
# The name of a copy has a hash of its content, "libz-0123abcd.so.1". The loader takes two libraries
# of one name for the same one, so without it Python's own modules and ours would share whichever
# libcrypto.so.3 a process loads first.
set -euo pipefail

libraries=$1 licenses=$2
shift 2
mkdir -p "$libraries" "$licenses"
elf=("$@")

declare -A copies=()
# ldd also lists what the libraries need: "NAME => PATH (ADDRESS)".
while read -r name path; do
  case $name in
    libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.*) continue ;;
    libstdc++.so.* | libgcc_s.so.* | ld-linux*) continue ;;
  esac
  read -r hash _ < <(sha256sum "$path")
  copies[$name]=${name%%.so*}-${hash:0:8}.so${name#*.so}
  install -m 0755 "$path" "$libraries/${copies[$name]}"
  patchelf --set-soname "${copies[$name]}" "$libraries/${copies[$name]}"
  elf+=("$libraries/${copies[$name]}")
  # Packages own the path without the symbolic link /lib -> usr/lib, or with it.
  real=$(realpath "$path")
  package=$(dpkg-query -S "$real" 2>/dev/null || dpkg-query -S "${real#/usr}")
  package=${package%%:*}
  install -D -m 0644 "/usr/share/doc/$package/copyright" "$licenses/$package/copyright"
done < <(ldd "$@" | sed -nE 's/^\s*(\S+) => (\S+) .*/\1 \2/p' | sort -u)

for file in "${elf[@]}"; do
  renamed=()
  while read -r name; do
    if [[ ${copies[$name]:-} ]]; then renamed+=(--replace-needed "$name" "${copies[$name]}"); fi
  done < <(patchelf --print-needed "$file")
  if ((${#renamed[@]})); then patchelf "${renamed[@]}" "$file"; fi
  # DT_RPATH: unlike DT_RUNPATH, it also holds for the libraries of libraries.
  to_libraries=$(realpath --relative-to "$(dirname "$file")" "$libraries")
  patchelf --force-rpath --set-rpath "\$ORIGIN/$to_libraries" "$file"
done
