#!/usr/bin/env bash
# Runs go test as root of a sandbox and ends with a summary (tools/testrun).
# Failed tests are run again alone, each in a sandbox of its own. Exits with
# failure when a test keeps failing, when more than three are flaky, when nothing
# was tested, or when the tests leave namespaces, links, rules, tables or
# processes behind.
#
#   hack/test.sh PACKAGES GO_TEST_FLAG...
#
# Tests with a Kubernetes control plane go first, since they take longest. Where
# it must be built, it is built while the others run.
set -euo pipefail
cd "$(dirname "$0")/.."

patterns=$1
shift
for flag in "$@"; do
	case $flag in
	-tags* | --tags*)
		echo "TEST_FLAGS has $flag, which would leave out packages: set GOFLAGS=-tags=... instead." >&2
		exit 2
		;;
	-failfast* | --failfast*)
		echo "TEST_FLAGS has $flag, after which nobody knows what was not run: use -run to run less." >&2
		exit 2
		;;
	esac
done
testrun=$(hack/tool.sh testrun testrun)
hack/slowly.sh "Downloading Go modules" go mod download # nothing can be fetched in the sandbox

# shellcheck disable=SC2086 # several patterns
all=$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' $patterns)
if [ -z "$all" ]; then
	echo "No package of $patterns has tests." >&2
	exit 1
fi
# Prometheus's own programs, for the tests of alerts.
case $all in
*/test/e2e/alerts*) prometheus="promexpr promtool prometheus" ;;
*/deploy/monitoring*) prometheus="promexpr promtool" ;;
*) prometheus= ;;
esac
for program in $prometheus; do hack/tool.sh prometheus "$program" >/dev/null; done

# The reference plugins that Berth is chained after.
case $all in
*/test/chained*) for program in ptp host-local; do hack/tool.sh cniplugins "$program" >/dev/null; done ;;
esac

# The virtual machine's kernel, which is downloaded.
case $all in
*/test/guest* | */internal/lab/vm*)
	BERTH_VM_IMAGE=$(hack/vm.sh --prepare)
	export BERTH_VM_IMAGE
	;;
esac

# first prints packages, those that take longest before the rest, so that none of
# them is left to run alone. A summary's list of slowest packages tells them.
first() {
	awk 'BEGIN { split("test/crash test/trouble test/guest internal/source/pool test/ports test/bench internal/operator/addresspool test/conformance " \
			"internal/operator/vpcport internal/lab/demo internal/source/nodenetwork internal/operator internal/operator/nodenetwork deploy " \
			"internal/source/eni internal/datapath internal/cloud/pace internal/cloud/aws", long, " ")
		for (i in long) place["github.com/berthnet/berth/" long[i]] = i }
		{ print ($0 in place ? place[$0] : 99), $0 }' | sort -ns -k 1,1 | cut -d ' ' -f 2-
}

# Those whose test program links the package that starts a control plane: a
# dependency of PACKAGE.test is listed as PATH, or as PATH [PACKAGE.test].
# shellcheck disable=SC2086
kube=$(go list -test -f '{{if eq .Name "main"}}{{$p := .ImportPath}}{{range .Deps}}{{$p}} {{.}}{{"\n"}}{{end}}{{end}}' $patterns |
	awk '$2 == "github.com/berthnet/berth/internal/lab/run/kube" && sub(/\.test$/, "", $1) { print $1 }' |
	sort -u | first)
others=$(grep -vxFf <(echo "$kube") <<<"$all" | first || [ $? = 1 ])

status=0
if [ "$patterns" = ./... ]; then
	hack/slowly.sh "Building all packages" go build ./... # also what no test links
	for module in tools/testrun tools/images; do hack/slowly.sh "Testing $module" go -C "$module" test ./... || status=$?; done
fi

# The race detector needs cgo.
for flag in "$@"; do
	case $flag in
	-race | --race) export CGO_ENABLED=1 ;;
	esac
done

# Results are never taken from the cache: the kernel and the programs that the
# tests run are no part of its key. One package more than processors runs at a time,
# since each waits for something for a part of its time; with more, tests of whole labs
# starve each other. The programs they start live for seconds, so that garbage is collected late. Vet is a step of
# its own (make vet), and symbols are for debuggers: panics have their lines without.
export GOGC=400
BERTH_LEFTOVERS=check "$testrun" \
	-packages "$others" -later "$kube" -await hack/kubebox.sh -await-env KUBEBUILDER_ASSETS -flaky-file dist/flaky-tests.txt \
	-- hack/sandbox.sh go test -json -count=1 -p "$(($(nproc) + 1))" -vet=off -ldflags='-s -w' "$@" || status=$?
if [ "$status" = 0 ]; then echo PASS; else echo FAIL; fi
exit "$status"
