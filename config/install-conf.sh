#!/bin/sh
# install-conf.sh FILE DIR - puts expertd.conf into DIR. One that is there is its owner's: it is kept, and what differs lies beside it.
set -eu
to="${DESTDIR:-}$2/expertd.conf"
mkdir -p "${to%/*}"
if [ -e "$to" ] || [ -L "$to" ]; then
    if cmp -s "$1" "$to"; then
        exit 0
    fi
    install -m 0644 "$1" "$to.new"
    echo "$to was there and is kept; this version's file is $to.new"
    exit 0
fi
# The file may come to hold a key. 0640 needs a group through which the service can read it.
if [ -z "${DESTDIR:-}" ] && [ "$(id -u)" = 0 ] && getent group expertd >/dev/null; then
    install -m 0640 -g expertd "$1" "$to"
else
    install -m 0644 "$1" "$to"
    echo "$to can be read by everybody: before it holds a key, chgrp expertd and chmod 640 it"
fi
echo "Installing $1 to $to"
