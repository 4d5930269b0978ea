#!/usr/bin/env bash
# Runs the soaks of test/crash until a time or a number of operations is
# reached. Prints the report and leaves it in dist/soak-report.txt, with logs of
# the first failed rounds beside it in soak-logs. An interrupt ends it early,
# with the report of what was done.
#
#   hack/soak.sh -soak.time=8h [-soak.ops=N] [-soak.mode=MODE] [-soak.seed=N]
set -euo pipefail
cd "$(dirname "$0")/.."

go mod download # nothing can be fetched in the sandbox
KUBEBUILDER_ASSETS=$(hack/kubebox.sh)
mkdir -p dist
rm -rf dist/soak-report.txt dist/soak-logs
CGO_ENABLED=1 go test -c -race -o dist/soak.test ./test/crash

# Not by `go test`, which would stand between an interrupt and the report.
export KUBEBUILDER_ASSETS BERTH_LEFTOVERS=check BERTH_GRACE=180
dist=$PWD/dist
cd test/crash
exec ../../hack/sandbox.sh "$dist/soak.test" -test.run='^TestSoak$' -test.timeout=0 -soak.report="$dist/soak-report.txt" "$@"
