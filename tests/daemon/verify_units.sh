#!/bin/sh
# systemd-analyze verify on the units as they are installed: $1 service, $2 socket, $3 program. 77: skipped.
set -eu
command -v systemd-analyze >/dev/null || { echo "systemd-analyze is not installed"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# ExecStart must name a program that exists; the installed path does not exist before the installation.
sed "s|^ExecStart=[^ ]*|ExecStart=$(realpath "$3")|; s|^ExecReload=[^ ]*/expertd|ExecReload=$(realpath "$3")|" "$1" > "$dir/expertd.service"
cp "$2" "$dir/expertd.socket"
export SYSTEMD_UNIT_PATH="$dir:"
out=$(systemd-analyze verify --man=no --recursive-errors=no "$dir/expertd.service" "$dir/expertd.socket" 2>&1) || status=$?
printf '%s\n' "$out"
[ "${status:-0}" = 0 ] || exit 1
# Unknown keys are only warnings to systemd-analyze, but mistakes to us.
case $out in *expertd.service:*|*expertd.socket:*) exit 1;; esac
