#!/usr/bin/env bash
# Runs the soaks of test/crash until a time or a number of operations is
# reached. Prints the report and leaves it in dist/soak-report.txt, with logs of
# the first failed rounds beside it in soak-logs. An interrupt ends it early,
# with the report of what was done.
#
# The soak of egress takes a kernel with Foo-over-UDP: it runs in a virtual
# machine (hack/vm.sh) beside the others, with a control plane of this machine, and its
# report, dist/soak-egress/soak-report.txt, is appended. The programs there do
# not look for data races. With BERTH_SOAK_EGRESS=no it is left out. That of branches,
# which takes a kernel with VLANs, runs there too, if it is asked for by its name.
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

# guest runs the soak of a mode that takes the virtual machine.
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

# Not by `go test`, which would stand between an interrupt and the report. An interrupt is the
# children's: what is left here is to bring the reports together.
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
