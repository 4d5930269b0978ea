#!/usr/bin/env bash
# Prints the packages, or a pattern of the tests, of which `make test` runs a slice: test
# functions that call harness.Sample or harness.Rotate.
#
#   hack/sampled.sh packages|tests
set -euo pipefail
cd "$(dirname "$0")/.."

# Lines are FOLDER TEST.
found=$(git ls-files --cached --others --exclude-standard '*_test.go' | xargs -d '\n' awk '
	/^func / { test = $0 ~ /^func Test/ ? substr($2, 1, index($2, "(") - 1) : "" }
	/harness\.(Sample|Rotate)\(/ && test != "" { folder = FILENAME; sub(/\/[^\/]*$/, "", folder); print "./" folder, test }')

case ${1:-} in
packages) cut -d ' ' -f 1 <<<"$found" | sort -u | paste -sd ' ' ;;
tests) echo "^($(cut -d ' ' -f 2 <<<"$found" | sort -u | paste -sd '|'))$" ;;
*) echo "hack/sampled.sh: expected packages or tests, got \"${1:-}\"" >&2 && exit 2 ;;
esac
