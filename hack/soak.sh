#!/usr/bin/env bash
# Runs the soaks of test/crash until a time or a number of operations is reached. Prints the
# report and writes it to dist/soak-report.txt, and the logs of the first failed rounds to
# soak-logs next to it. An interrupt ends the soak early, with a report of the completed
# part.
#
# The soak of egress needs a kernel with Foo-over-UDP: it runs in a virtual machine
# (hack/vm.sh) in parallel to the others, with a control plane on this machine. Its report,
# dist/soak-egress/soak-report.txt, is appended. The programs in the virtual machine run
# without the race detector. BERTH_SOAK_EGRESS=no skips it. The soak of branches, which
# needs a kernel with VLANs, runs there too, but only if selected by name.
#
#   hack/soak.sh -soak.time=8h [-soak.ops=N] [-soak.mode=MODE] [-soak.seed=N]
set -euo pipefail
cd "$(dirname "$0")/.."

mode=
for flag in "$@"; do case $flag in -soak.mode=*) mode=${flag#*=} ;; esac done
[ -n "$mode" ] || [ "${BERTH_SOAK_EGRESS:-}" != no ] || mode=host

hack/slowly.sh "Downloading Go modules" go mod download # nothing can be fetched in the sandbox
KUBEBUILDER_ASSETS=$(hack/kubebox.sh)
dist=$PWD/dist
mkdir -p dist
rm -rf dist/soak-report.txt dist/soak-logs dist/soak-egress dist/soak-*+branches
export KUBEBUILDER_ASSETS

# guest runs the soak of a mode that needs the virtual machine.
guest() {
	local mode=$1
	shift
	local dir=$dist/soak-$mode
	mkdir -p "$dir/bin"
	CGO_ENABLED=0 hack/slowly.sh "Building the programs for the virtual machine" \
		go build -trimpath -tags grpcnotrace -ldflags '-s -w' -o "$dir/bin/" ./cmd/berth ./cmd/berthd ./cmd/berth-operator ./cmd/berth-egress
	CGO_ENABLED=0 hack/slowly.sh "Building the soak for the virtual machine" go test -c -trimpath -tags grpcnotrace -ldflags '-s -w' -o "$dir/soak.test" ./test/crash
	local status=0 as_root=()
	[ "$(id -u)" = 0 ] || as_root=(hack/sandbox.sh)
	"${as_root[@]}" env BERTH_TEST_BIN="$dir/bin" hack/vm.sh --control-plane --cpus "${BERTH_SOAK_CPUS:-2}" --memory 4096 --share "$dir" \
		"$dir/soak.test" -test.run='^TestSoak$' -test.timeout=0 -soak.report="$dir/soak-report.txt" "$@" "-soak.mode=$mode" || status=$?
	return "$status"
}

case $mode in
egress | *+branches)
	status=0
	guest "$mode" "$@" || status=$?
	cp "dist/soak-$mode/soak-report.txt" dist/soak-report.txt
	if [ -d "dist/soak-$mode/soak-logs" ]; then cp -r "dist/soak-$mode/soak-logs" dist/; fi
	exit "$status"
	;;
esac

CGO_ENABLED=1 hack/slowly.sh "Building the soak" go test -c -race -o dist/soak.test ./test/crash
beside=
if [ -z "$mode" ]; then
	guest egress "$@" >dist/soak-egress.log 2>&1 &
	beside=$!
fi

# Does not use `go test`, which would exit on an interrupt before the report is written. The
# child processes handle the interrupt; this script only combines the reports.
export BERTH_LEFTOVERS=check BERTH_GRACE=180
status=0
trap : INT TERM
(cd test/crash && exec ../../hack/sandbox.sh "$dist/soak.test" -test.run='^TestSoak$' -test.timeout=0 -soak.report="$dist/soak-report.txt" "$@") || status=$?
if [ -n "$beside" ]; then
	wait "$beside" || status=$?
	echo
	cat dist/soak-egress/soak-report.txt || tail -n 20 dist/soak-egress.log
	cat dist/soak-egress/soak-report.txt >>dist/soak-report.txt || true
	if [ -d dist/soak-egress/soak-logs ]; then mkdir -p dist/soak-logs && cp -r dist/soak-egress/soak-logs/. dist/soak-logs/; fi
fi
exit "$status"
