#!/usr/bin/env bash
# Runs the test of Egresses on a cluster with containerd, kubelets and kube-proxy
# (test/cluster, TestEgress) in the virtual machine, whose kernel has Foo-over-UDP.
# BERTH_LAB_IMAGES is the directory printed by hack/lab-images.sh, BERTH_RELEASE that of a
# release.
#
#   hack/egress-cluster.sh [FLAG OF THE TEST...]
set -euo pipefail
cd "$(dirname "$0")/.."

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM HUP
CGO_ENABLED=0 GOFLAGS='' hack/slowly.sh "Building the test of Egresses on a cluster" \
	go test -c -trimpath -tags e2e,fou,grpcnotrace -ldflags '-s -w' -o "$dir/cluster.test" ./test/cluster
KUBEBUILDER_ASSETS=$(hack/kubebox.sh)
as_root=()
[ "$(id -u)" = 0 ] || as_root=(hack/sandbox.sh)
# Overlays of containers cannot be stacked on the machine's own overlay.
"${as_root[@]}" hack/vm.sh --cpus 2 --memory 12288 env KUBEBUILDER_ASSETS="$KUBEBUILDER_ASSETS" \
	BERTH_LAB_IMAGES="${BERTH_LAB_IMAGES:?set it to the directory that hack/lab-images.sh prints}" \
	BERTH_RELEASE="${BERTH_RELEASE:?set it to the directory of a release, such as \$PWD/dist/release}" \
	sh -c 'mkdir -p /var/lib/vpclab && mount -t tmpfs -o size=100% tmpfs /var/lib/vpclab && cd test/cluster && exec "$0" -test.run "^TestEgress\$" -test.v -test.timeout 60m "$@"' \
	"$dir/cluster.test" "$@"
