#!/bin/bash
# Fuzzes each target of the module in turn: sandbox/fuzz.sh TIME [FLAGS of go test...]. A line for each as it ends, and all of them at the end.
# Non-zero when one failed, after the others had their time; go test has then left the input in that package's testdata/fuzz, and a target in
# Python a crash-… here. Those are run where FUZZ_PYTHON names a Python that has atheris.
set -euo pipefail
time=${1:?how long each, such as 60s}
shift
cd "$(dirname "$0")/.."
mapfile -t targets < <(grep -rHoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sed -E 's|^(.*)/[^/]*:func (.*)|\1 \2|' | sort)
[ -z "${FUZZ_PYTHON:-}" ] || for f in python/tests/fuzz_*.py; do targets+=("./$(dirname "$f") $(basename "$f")"); done
((${#targets[@]})) || { echo "fuzz: no target found" >&2; exit 1; }
log=$(mktemp) corpus=$(mktemp -d)
trap 'rm -rf "$log" "$corpus"' EXIT
case $time in *m) seconds=$((${time%m} * 60)) ;; *) seconds=${time%s} ;; esac
line='%-8s %-38s %-44s %-8s %10s %11s %8s\n'
failed=0 i=0 rows=()
last() { sed -nE "s/^fuzz: elapsed.* $1: ([0-9]+).*/\1/p" "$log" | tail -1; }
# shellcheck disable=SC2059
head() { printf "$line" "" package target result execs "new inputs" seconds; }
head
for target in "${targets[@]}"; do
	read -r package name <<<"$target"
	i=$((i + 1)) began=$SECONDS result=ok
	if [[ $name == *.py ]]; then
		"$FUZZ_PYTHON" "$package/$name" "$corpus" -max_total_time="$seconds" -max_len=8192 >"$log" 2>&1 || result=FAILED
		execs=$(sed -nE 's/^Done ([0-9]+) runs.*/\1/p' "$log") inputs=$(find "$corpus" -type f | wc -l)
	else
		go test -tags grpcnotrace -run '^$' -fuzz "^$name\$" -fuzztime "$time" -fuzzminimizetime 10x "$@" "$package" >"$log" 2>&1 || result=FAILED
		execs=$(last execs) inputs=$(last "new interesting")
		! grep -q "no fuzz tests to fuzz" "$log" || result=FAILED # go test says ok to a target that its tags leave out
	fi
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
