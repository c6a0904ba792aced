#!/bin/bash
# Makes memtide.deb. The same input gives the same bytes.
#
#   mkdeb.sh OUT VERSION SCRIPTS KIND:DESTINATION:FILE...
#
# SCRIPTS: files for DEBIAN/ (postinst ...), comma-separated. KIND: elf (a program or library, which
# gives the dependencies), program or data. MULTIARCH in a destination is Debian's folder for libraries
# of one architecture. The architecture is the machine's, or that of the environment variable
# DEB_HOST_ARCH.
set -euo pipefail

out=$1 version=$2 scripts=$3
shift 3
architecture=$(dpkg-architecture -qDEB_HOST_ARCH 2>/dev/null)
libraries=usr/lib/$(dpkg-architecture -a"$architecture" -qDEB_HOST_MULTIARCH 2>/dev/null)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
package=$root/package
mkdir -p "$package/DEBIAN" "$root/debian"
chmod 755 "$root" "$package" "$package/DEBIAN"

elf=()
for spec in "$@"; do
  IFS=: read -r kind destination file <<<"$spec"
  destination=${destination/#usr\/lib\/MULTIARCH/$libraries}
  mode=0755
  if [[ $kind == data || $destination == *.so.* ]]; then mode=0644; fi
  install -D -m "$mode" "$file" "$package/$destination"
  if [[ $kind == elf ]]; then elf+=("-epackage/$destination"); fi
done
IFS=, read -ra maintainer_scripts <<<"$scripts"
for script in "${maintainer_scripts[@]}"; do
  install -m 0755 "$script" "$package/DEBIAN/$(basename "$script")"
done
ln -s libmemtide.so.0 "$package/$libraries/libmemtide.so"

printf 'Source: memtide\n\nPackage: memtide\nArchitecture: %s\n' "$architecture" \
  >"$root/debian/control"
depends=$(cd "$root" && dpkg-shlibdeps -O --ignore-missing-info -l"package/$libraries" "${elf[@]}" \
  2>/dev/null | sed -n 's/^shlibs:Depends=//p')
if [[ -z $depends ]]; then
  echo "dpkg-shlibdeps found no dependencies" >&2
  exit 1
fi
cat >"$package/DEBIAN/control" <<CONTROL
Package: memtide
Version: $version
Architecture: $architecture
Maintainer: memtide developers <memtide@localhost>
Installed-Size: $(du -sk --apparent-size --exclude=DEBIAN "$package" | cut -f1)
Depends: $depends, adduser, python3 (>= 3.11), python3-rich
Section: admin
Priority: optional
Description: device, host and SSD memory for training processes
 memtided owns the memory of a training node and lends it in chunks, so that an
 unmodified PyTorch script trains a model several times larger than its memory.
CONTROL
echo "activate-noawait ldconfig" >"$package/DEBIAN/triggers"
# dpkg keeps these as the operator has changed them.
(cd "$package" && find etc -type f -printf '/%p\n' | sort) >"$package/DEBIAN/conffiles"
chmod 644 "$package/DEBIAN/"{control,triggers,conffiles}

epoch=${SOURCE_DATE_EPOCH:-0}
find "$package" -print0 | xargs -0 touch -h -d "@$epoch"
SOURCE_DATE_EPOCH=$epoch dpkg-deb --root-owner-group -Zxz -b "$package" "$out" >/dev/null
