#!/usr/bin/env bash
# Runs go test as root of a sandbox and ends with a summary. Exits with
# failure when a test fails, when nothing was tested, or when the tests leave
# namespaces, links, rules, tables or processes behind.
#
#   hack/test.sh GO_TEST_ARGUMENT...
set -euo pipefail
cd "$(dirname "$0")/.."

summary=$(hack/tool.sh testsum testsum)
go mod download # nothing can be fetched in the sandbox
KUBEBUILDER_ASSETS=$(hack/kubebox.sh)
export KUBEBUILDER_ASSETS

# Results are never taken from the cache: the kernel and the programs that the
# tests run are no part of its key.
run() {
	BERTH_LEFTOVERS=check hack/sandbox.sh go test -json -count=1 "$@" || return
	[[ " $* " == *" ./... "* ]] || return 0
	# Modules under tools/ with tests of their own.
	local module
	for module in $(dirname tools/*/*_test.go | sort -u); do
		go -C "$module" test -json -count=1 ./... || return
	done
}
status=0
run "$@" | "$summary" || status=$?
if [ "$status" = 0 ]; then echo PASS; else echo FAIL; fi
exit "$status"
