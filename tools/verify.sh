#!/usr/bin/env bash
# What a change must pass before review: format, vet, lint, language, generated files. It changes no file, and fails if one of its own
# steps did. `make verify` runs it; GO_TAGS is the Makefile's.
set -euo pipefail
cd "$(dirname "$0")/.."

tree() { git status --porcelain; git diff HEAD | sha256sum; }
part() { # part NAME CMD...: runs CMD and prints how long it took
	local name=$1 from=$SECONDS
	shift
	"$@" || { echo "verify: $name failed" >&2; exit 1; }
	echo "verify: $name, $((SECONDS - from)) s"
}
formatted() {
	local bad
	bad=$(git ls-files '*.go' | xargs gofmt -l)
	[ -z "$bad" ] || { printf 'gofmt -w these files:\n%s\n' "$bad" >&2; return 1; }
}
language() { go -C tools test ./language && go -C tools run ./language -root ..; }
# The tests that write golden files with -update compare them without it.
generated() { grep -rl --include='*_test.go' 'flag.Bool("update"' . | xargs -n1 dirname | sort -u | xargs go test -tags "$GO_TAGS" .; }

before=$(tree)
part format formatted
part language language
part vet go vet -tags "$GO_TAGS" ./...
part lint make -s lint
part 'generated files' generated
[ "$before" = "$(tree)" ] || { echo "verify: a step changed the working tree:" >&2; git status --short >&2; exit 1; }
echo "verify: passed in $SECONDS s"
