#!/usr/bin/env bash
# Runs go test as root in a sandbox and prints a summary (tools/testrun). Failed tests are
# retried alone, each in its own sandbox. Fails if a test keeps failing, if more than three
# tests are flaky, if no tests ran, or if the tests leave namespaces, links, rules, tables or
# processes behind.
#
#   hack/test.sh PACKAGES GO_TEST_FLAG...
#
# RACE selects the packages that run with the race detector. "auto" is the gate: all
# packages except those that start labs, plus every second package with a control plane,
# chosen by the slice. It uses Go's test cache where it is reliable, and enforces
# hack/budget.tsv. "all" (the default) and "none" do not use the cache. BERTH_SAMPLE is the
# slice of the rotation (harness.Rotate), or all.
#
# While the control plane is being built, packages that do not need it are tested.
set -euo pipefail
cd "$(dirname "$0")/.."

patterns=$1
shift
counted=
for flag in "$@"; do
	case $flag in
	-count* | --count*) counted=yes ;;
	-p | -p=* | --p | --p=*)
		echo "TEST_FLAGS has $flag, but each group of packages has its own: set -parallel instead." >&2
		exit 2
		;;
	-race | --race)
		echo "TEST_FLAGS has $flag: set RACE=all instead." >&2
		exit 2
		;;
	-tags* | --tags*)
		echo "TEST_FLAGS has $flag, which would leave out packages: set GOFLAGS=-tags=... instead." >&2
		exit 2
		;;
	-failfast* | --failfast*)
		echo "TEST_FLAGS has $flag, which hides the tests that were not run: use -run to select tests." >&2
		exit 2
		;;
	esac
done
testrun=$(hack/tool.sh testrun testrun)
hack/slowly.sh "Downloading Go modules" go mod download # the sandbox has no network access

# shellcheck disable=SC2086 # several patterns
all=$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' $patterns)
if [ -z "$all" ]; then
	echo "No package of $patterns has tests." >&2
	exit 1
fi
# Programs that tests start, which must be built outside the sandbox.
build() { # build PACKAGE MODULE PROGRAM...: if a package with this path has tests
	case $all in
	*"$1"*) for program in "${@:3}"; do hack/tool.sh "$2" "$program" >/dev/null; done ;;
	esac
}
build /test/e2e/alerts prometheus promexpr promtool prometheus
build /deploy/monitoring prometheus promexpr promtool
build /internal/policy/resolve policyreference policyreference
build /test/labs cniplugins ptp host-local
build /lab/demo amazonvpccni aws-k8s-agent routed-eni-cni-plugin # from which a node of a lab moves
build /test/guest amazonvpccni aws-k8s-agent routed-eni-cni-plugin

# The kernel of the virtual machine, which must be downloaded outside the sandbox.
case $all in
*/test/guest* | */lab/vm*)
	BERTH_VM_IMAGE=$(hack/vm.sh --prepare)
	export BERTH_VM_IMAGE
	;;
esac

# Slow packages first, by waiting time and then by budget, so that none of them runs alone
# at the end. Import paths come from stdin.
first() {
	awk -v module="$(go list -m)/" -v waits="lab/demo internal/operator/podnics" '
		BEGIN { n = split(waits, of); for (i = 1; i <= n; i++) extra[module of[i]] = 1000 }
		NR == FNR { if ($1 !~ /^#/) cost[module $1] = $2 + 0; next } { print cost[$0] + extra[$0], $0 }' \
		hack/budget.tsv - | sort -rns -k 1,1 | cut -d ' ' -f 2-
}
some() { grep "$@" || [ $? = 1 ]; } # grep that may find nothing

# The packages linked into the test program of each package, as PACKAGE DEPENDENCY. A
# dependency that is compiled for a test is listed as PATH [PACKAGE.test].
links=$(go list -test -f '{{if eq .Name "main"}}{{$p := .ImportPath}}{{range .Deps}}{{$p}} {{.}}{{"\n"}}{{end}}{{end}}' $patterns | sed 's/\.test / /')

# Packages with a control plane, which may have to be built first.
kube=$(awk -v start="$(go list ./lab/run/kube)" '$2 == start { print $1 }' <<<"$links" | sort -u)

# Packages that are never cached: they start a control plane, or programs of this module,
# whose code is not part of Go's cache key. Other results are cached while their code, the
# files that they read, the kernel and the Debian packages are unchanged; the last two are
# part of the link flags.
every=$({
	echo "$kube"
	git grep -lE --untracked 'exec\.Command(Context)?\([^"]*"(go|[^"]*\.sh)"' -- '*_test.go' | xargs -r -n 1 dirname | sed "s|^|$(go list -m)/|"
} | sort -u)
machine=$({
	uname -srvm
	dpkg-query -W 2>/dev/null || true
} | sha256sum | cut -c 1-16)

# Packages without the race detector in the gate: packages that start labs, where the
# concurrency is in the programs, packages with little concurrency, and whole programs in
# virtual time. make e2e and make soak run the programs with the race detector, where a
# threefold run time does not matter.
labs=$({
	git grep -lE --untracked '\bharness\.Main\(' -- '*_test.go' | xargs -r -n 1 dirname | sort -u
	printf '%s\n' test/guest test/virtual api/v1alpha1 deploy deploy/monitoring internal/ctl/kubectl internal/ctl/bundle internal/planner lab/run/kube lab/vm web/planner
} | sed "s|^|$(go list -m)/|")

status=0
if [ "$patterns" = ./... ]; then
	hack/slowly.sh "Building all packages" go build ./... # including packages that no test links
	for module in tools/testrun tools/images; do hack/slowly.sh "Testing $module" go -C "$module" test ./... || status=$?; done
fi

# The programs that tests start run for seconds, so the garbage collector runs rarely. Vet
# is a separate step (make vet). Symbols are only needed by debuggers: panics have line
# numbers without them.
export GOGC=400
once=(-count=1)
[ -z "$counted" ] || once=() # a group's flags would override the caller's
case ${RACE:-all} in
auto) fresh=(-race "${once[@]}") lab=(CGO_ENABLED=0 "${once[@]}") ;;
all) fresh=(-race "${once[@]}") lab=(-race "${once[@]}") ;;
none) fresh=(CGO_ENABLED=0 "${once[@]}") lab=(CGO_ENABLED=0 "${once[@]}") ;;
*) echo "RACE is \"$RACE\", expected auto, all or none." >&2 && exit 2 ;;
esac
[ "${fresh[0]}" != -race ] || export CGO_ENABLED=1 # the race detector needs cgo

groups=()
# group FLAG... adds a group of packages from stdin, which are tested with these flags.
group() {
	local waiting others list
	list=$(some -xFf <(echo "$all") | first)
	waiting=$(some -xFf <(echo "$kube") <<<"$list")
	others=$(some -vxFf <(echo "$kube") <<<"$list")
	[ -z "$waiting" ] || groups+=(-later "$* :: $waiting")
	[ -z "$others" ] || groups+=(-packages "$* :: $others")
}
fresh_packages=$(some -vxFf <(echo "$labs") <<<"$every")
unraced=$labs
case ${RACE:-all}-${BERTH_SAMPLE:-0} in
auto-[0-9]) # packages with a control plane use the race detector in every second slice
	rest=$(awk -v slice="$BERTH_SAMPLE" 'NR % 2 != slice % 2' <<<"$fresh_packages")
	unraced+=$'\n'$rest
	fresh_packages=$(some -vxFf <(echo "$rest") <<<"$fresh_packages")
	;;
esac
group "${lab[@]}" -p 4 <<<"$unraced"
group "${fresh[@]}" -p 2 <<<"$fresh_packages"
[ "${RACE:-all}" != auto ] || fresh=(-race) # the remaining packages may use Go's cache
group "${fresh[@]}" -p 2 < <(some -vxFf <(echo "$every"; echo "$labs") <<<"$all")

echo "Running slice ${BERTH_SAMPLE:-0} of the sampled and rotating tests (docs/contribute/testing.md, \"Samples\"); race detector: ${RACE:-all}."
budget=()
[ "${RACE:-all}" != auto ] || [ "${BERTH_SAMPLE:-0}" = all ] || [ -n "$counted" ] || budget=(-budget hack/budget.tsv)
BERTH_LEFTOVERS=check "$testrun" "${groups[@]}" "${budget[@]}" -accounts-file dist/test-accounts.tsv \
	-await hack/kubebox.sh -await-env KUBEBUILDER_ASSETS -flaky-file dist/flaky-tests.txt \
	-- hack/sandbox.sh go test -json -vet=off -ldflags="-s -w -X main.machine=$machine" "$@" || status=$?
if [ "$status" = 0 ]; then echo PASS; else echo FAIL; fi
exit "$status"
