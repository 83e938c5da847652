#!/usr/bin/env bash
# timed.sh FILE NAME CMD... runs CMD and adds its seconds and NAME to FILE. timed.sh FILE prints FILE as a table with the total.
set -euo pipefail
file=$1
shift
if [ $# -eq 0 ]; then
	awk -F '\t' '{ printf "%7d s  %s\n", $1, $2; total += $1 } END { printf "%7d s  in all\n", total }' "$file"
	exit
fi
name=$1 from=$SECONDS
shift
code=0
"$@" || code=$?
printf '%d\t%s\n' $((SECONDS - from)) "$name" >>"$file"
exit $code
