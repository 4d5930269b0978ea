#!/usr/bin/env bash
# Runs Kubernetes' own end-to-end network tests against Berth, on one lab cluster at a
# time (see test/upstream).
#
#   hack/conformance.sh MODES [FLAG...]      (hack/conformance.sh "node/ipv6 pool" -focus DNS)
#
# Needs root. Runs all modes, and fails if a spec failed in any of them.
set -euo pipefail
cd "$(dirname "$0")/.."

modes=$1
shift
# Without this, Bash would continue with the next mode after an interrupt. The runner cleans
# up and exits.
trap 'exit 130' INT TERM HUP
hack/check-machine.sh
groups=(cluster lab-images)
[[ " $modes " != *" pool"* ]] || groups+=(pool)
[[ " $modes " != *" port"* ]] || groups+=(ovn)
hack/deps.sh "${groups[@]}"
e2e=$(hack/tool.sh kubee2e e2e.test)
ginkgo=$(hack/tool.sh kubee2e ginkgo)
cluster=()
if [[ " $* " != *" -groups "* || " $* " = *clusterpolicy* ]]; then
	program=$(hack/tool.sh networkpolicyapi conformance.test) # which also downloads the module
	api=$(go -C tools/networkpolicyapi list -m -f '{{.Dir}}' sigs.k8s.io/network-policy-api)
	cluster=(-cluster-policies "$program"
		-cluster-policy-crd "$api/config/crd/experimental/policy.networking.k8s.io_clusternetworkpolicies.yaml")
fi
others=$(hack/lab-images.sh)
KUBEBUILDER_ASSETS=$(hack/kubebox.sh)
export KUBEBUILDER_ASSETS
hack/images.sh -version "$(git describe --tags --always --dirty --abbrev=12 2>/dev/null || echo dev)" -archs "$(go env GOARCH)" \
	-out dist/lab-images -- -formats archive -compress=false -tag lab >/dev/null
mkdir -p bin
CGO_ENABLED=0 hack/slowly.sh "Building the runner of Kubernetes' tests" go build -trimpath -o bin/upstream ./test/upstream

status=0
for mode in $modes; do
	families=
	[[ "$mode" != */* ]] || families=${mode#*/}
	bin/upstream -mode "${mode%%/*}" -ip-families "$families" -e2e "$e2e" -ginkgo "$ginkgo" -images "dist/lab-images:$others" \
		"${cluster[@]}" "$@" || status=1
done
exit "$status"
