#!/bin/sh
# Writes 32 random bytes as text to $1, for root and the group prometheus, if there is one by then.
set -eu

umask 027
mkdir -p "$(dirname "$1")"
chmod 755 "$(dirname "$1")"
new=$(mktemp "$1.XXXXXX")
trap 'rm -f "$new"' EXIT
head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >"$new"
chmod 640 "$new"
# Without it the token is for root, and works.
if getent group prometheus >/dev/null && ! chgrp prometheus "$new"; then
  echo "let the user prometheus read $1" >&2
fi
# The name appears with the whole token.
mv "$new" "$1"
