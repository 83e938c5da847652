#!/bin/sh
# Runs the Python that the sandbox trains with (the first that has torch), for tests and linters: sandbox/python.sh ARGS...
# PITCREW_PYTHON overrides which. pytest and ruff come from a virtual environment in the cache that sees that Python's packages.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
cache=${PITCREW_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pitcrew}
base=$("$here/bin/pitcrew" sandbox setup -o json | sed -n 's/.*"python": "\(.*\)",*/\1/p')
venv=$cache/tools-$(echo "$base" | cksum | cut -d' ' -f1)
if [ ! -e "$venv/ready" ]; then
	echo "python: a virtual environment with pytest and ruff, once, in $venv" >&2
	"$base" -c 'import ensurepip' 2>/dev/null || { # Debian keeps it in a package of its own
		[ "$(id -u)" = 0 ] || { echo "python: $base has no venv: install python3-venv" >&2; exit 1; }
		apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null
	}
	"$base" -m venv --clear --system-site-packages "$venv"
	"$venv/bin/python3" -m pip install -q --disable-pip-version-check pytest ruff
	touch "$venv/ready"
fi
exec "$venv/bin/python3" "$@"
