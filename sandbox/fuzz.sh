#!/bin/bash
# Fuzzes each target of the module in turn: sandbox/fuzz.sh TIME [FLAGS of go test...]. A line for each as it ends, and all of them at the end.
# Non-zero when one failed, after the others had their time; go test has then left the input in that package's testdata/fuzz.
set -euo pipefail
time=${1:?how long each, such as 60s}
shift
cd "$(dirname "$0")/.."
mapfile -t targets < <(grep -rHoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sed -E 's|^(.*)/[^/]*:func (.*)|\1 \2|' | sort)
((${#targets[@]})) || { echo "fuzz: no target found" >&2; exit 1; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT
line='%-8s %-38s %-44s %-8s %10s %11s %8s\n'
failed=0 i=0 rows=()
last() { sed -nE "s/^fuzz: elapsed.* $1: ([0-9]+).*/\1/p" "$log" | tail -1; }
# shellcheck disable=SC2059
head() { printf "$line" "" package target result execs "new inputs" seconds; }
head
for target in "${targets[@]}"; do
	read -r package name <<<"$target"
	i=$((i + 1)) began=$SECONDS result=ok
	go test -tags grpcnotrace -run '^$' -fuzz "^$name\$" -fuzztime "$time" -fuzzminimizetime 10x "$@" "$package" >"$log" 2>&1 || result=FAILED
	execs=$(last execs) inputs=$(last "new interesting")
	! grep -q "no fuzz tests to fuzz" "$log" || result=FAILED # go test says ok to a target that its tags leave out
	[ "$result" = ok ] || { failed=$((failed + 1)); cat "$log"; }
	# shellcheck disable=SC2059
	rows+=("$(printf "$line" "$i/${#targets[@]}" "$package" "$name" "$result" "${execs:-0}" "${inputs:-0}" $((SECONDS - began)))")
	echo "${rows[-1]}"
done
if ((failed)); then
	echo && head && printf '%s\n' "${rows[@]}"
	echo "fuzz: $failed of ${#targets[@]} targets failed" >&2
	exit 1
fi
echo "fuzz: ${#targets[@]} targets, none failed"
