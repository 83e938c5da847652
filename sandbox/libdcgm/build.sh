#!/bin/sh
# Builds the stubs libdcgm.so.4 and libnvidia-ml.so.1 into the directory given (default: bin/libdcgm), against the headers that go-dcgm itself carries,
# so that the two cannot drift apart.  usage: sandbox/libdcgm/build.sh [DIR]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../../bin/libdcgm}
mkdir -p "$out"
out=$(cd "$out" && pwd)
headers=${DCGM_HEADERS:-$(cd "$here/../.." && go mod download github.com/NVIDIA/go-dcgm && go list -m -f '{{.Dir}}' github.com/NVIDIA/go-dcgm)/pkg/dcgm}
[ -f "$headers/dcgm_agent.h" ] || {
	echo "libdcgm stub: no DCGM headers in $headers: run 'go mod download github.com/NVIDIA/go-dcgm', or set DCGM_HEADERS" >&2
	exit 1
}
# nodelete: a client that unloads the library after a failed disconnect must not pull the callback thread's code away.
# Built beside and renamed into place: a process that has the old one mapped keeps it.
tmp=$(mktemp "$out/.stub.XXXXXX")
trap 'rm -f "$tmp"' EXIT
build() { # name, sources
	so=$1
	shift
	${CC:-cc} -std=gnu11 -O2 -g -Wall -Wextra -fvisibility=hidden -shared -fPIC -pthread -Wl,-soname,"$so" -Wl,--no-undefined -Wl,-z,nodelete \
		-I"$here" -isystem "$headers" -o "$tmp" "$@" -lm
	chmod 755 "$tmp"
	mv "$tmp" "$out/$so"
}
build libnvidia-ml.so.1 "$here"/*.c "$here"/nvml/nvml.c
build libdcgm.so.4 "$here"/*.c
trap - EXIT
echo "$out/libdcgm.so.4"
