#!/usr/bin/env bash
# Records `pitcrew demo` as an animated SVG: tools/record.sh OUT. Nothing in it is edited; pauses are cut to two seconds.
# termtosvg comes from PyPI, into the cache. It needs a terminal, which script(1) of util-linux provides.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$1
cache=${PITCREW_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pitcrew}/record
[ -e "$cache/ready" ] || {
	python3 -m venv --clear "$cache"
	"$cache/bin/pip" install -q --disable-pip-version-check termtosvg==1.1.0
	touch "$cache/ready"
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkfifo "$work/quiet" # the standard input stays open and empty
exec 3<>"$work/quiet"
timeout 300 script -qec "env TERM=xterm-256color '$cache/bin/termtosvg' '$work/demo.svg' --screen-geometry 124x44 \
	--max-frame-duration 2000 --loop-delay 8000 --command 'bin/pitcrew demo'" /dev/null <&3
grep -q HEALED "$work/demo.svg" || { echo "record: the demo did not end with a recovery; $out is unchanged" >&2; exit 1; }
size=$(stat -c %s "$work/demo.svg")
[ "$size" -le 1000000 ] || { echo "record: $size bytes are too many for a README; $out is unchanged" >&2; exit 1; }
mv "$work/demo.svg" "$out"
echo "record: $out, $((size / 1024)) KiB"
