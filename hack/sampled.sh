#!/usr/bin/env bash
# Prints the tests of which `make test` runs a slice: test functions that call
# harness.Sample or harness.Rotate, directly or in a helper of their package. "packages"
# prints their packages, "tests" a pattern for go test -run, and "list" a list for people
# that includes the tests of `make e2e` only.
#
#   hack/sampled.sh packages|tests|list
set -euo pipefail
cd "$(dirname "$0")/.."

# Lines are FOLDER TEST.
found=$(git ls-files --cached --others --exclude-standard '*_test.go' | xargs -d '\n' awk '
	/^func / { test = $0 ~ /^func Test/ ? substr($2, 1, index($2, "(") - 1) : "" }
	/(harness\.(Sample|Rotate)|[ \t](eachCrash|eachBranchCase|sampled)|\.nothingPasses)\(/ && test != "" { folder = FILENAME; sub(/\/[^\/]*$/, "", folder); print "./" folder, test }')

case ${1:-} in
packages) cut -d ' ' -f 1 <<<"$found" | sort -u | paste -sd ' ' ;;
tests) echo "^($(cut -d ' ' -f 2 <<<"$found" | sort -u | paste -sd '|'))$" ;;
list)
	echo "In slices (BERTH_SAMPLE=0 to 9), one for each gate:"
	sort -u <<<"$found" | awk '{ tests[$1] = tests[$1] " " $2 } END { for (folder in tests) print "  " folder ":" tests[folder] }' | sort
	echo "In rotation in .ci/run, all in make e2e: Kubernetes' own tests, tests with a real Neutron."
	echo "In make e2e only:"
	git grep -lE --untracked '^//go:build .*\be2e\b' -- '*_test.go' | xargs -r grep -HoE '^func Test[A-Za-z0-9_]+\(t ' |
		sed -E 's|^(.*)/[^/]*:func ([^(]*).*|\1 \2|' | sort -u | awk '{ tests[$1] = tests[$1] " " $2 } END { for (folder in tests) print "  ./" folder ":" tests[folder] }' | sort
	;;
*) echo "hack/sampled.sh: expected packages, tests or list, got \"${1:-}\"" >&2 && exit 2 ;;
esac
