#!/bin/sh
# A second installation keeps the configuration that its owner edited. $1 install-conf.sh, $2 the file.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "$*"; exit 1; }
conf=$dir/etc/expertd/expertd.conf
DESTDIR=$dir "$1" "$2" /etc/expertd
cmp "$2" "$conf"
DESTDIR=$dir "$1" "$2" /etc/expertd
[ ! -e "$conf.new" ] || fail "a file that was not edited needs no second one"
echo '[server]
api_key = mine' >"$conf"
chmod 600 "$conf"
for round in 1 2; do
    DESTDIR=$dir "$1" "$2" /etc/expertd | grep -qF "$conf.new" || fail "round $round: it has to say where the new file is"
    [ "$(sed -n 2p "$conf")" = 'api_key = mine' ] || fail "round $round: overwritten"
    [ "$(stat -c %a "$conf")" = 600 ] || fail "round $round: rights were changed"
    cmp "$2" "$conf.new"
done
# A link that leads nowhere just now is the owner's, too.
rm "$conf"
ln -s nowhere "$conf"
DESTDIR=$dir "$1" "$2" /etc/expertd
[ -L "$conf" ] && [ ! -e "$conf" ] || fail "a link was replaced"
# Where the service's group exists, only it reads the file. (Needs root, and the group.)
if [ "$(id -u)" = 0 ] && getent group expertd >/dev/null; then
    "$1" "$2" "$dir/own"
    [ "$(stat -c '%a %G' "$dir/own/expertd.conf")" = '640 expertd' ] || fail "rights: $(stat -c '%a %G' "$dir/own/expertd.conf")"
fi
