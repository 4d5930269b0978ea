#!/usr/bin/env bash
# Builds the programs and images for a lab cluster and runs the demo in it (make demo
# MODE=cluster): whole nodes with containerd, kubelet and kube-proxy. It needs root on
# the machine itself, because pods need the machine's cgroups.
#
#   hack/cluster-demo.sh node|operator|pool|port [FLAG OF vpclab demo...]
#
# CONTAINERD=2 uses containerd 2, built from its Go module, instead of Debian's.
set -euo pipefail
cd "$(dirname "$0")/.."

mode=$1
shift
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
"${as_root[@]}" hack/check-machine.sh
groups=(cluster)
[ "$mode" != port ] || groups+=(ovn)
[ "$mode" != pool ] || groups+=(pool)
hack/deps.sh "${groups[@]}"
make build
images=$(make lab-images)
mapfile -t folders <<<"$images"
flags=(--kubelets "--mode=$mode" "--helm=$(hack/tool.sh helm helm)")
for folder in "${folders[@]}"; do flags+=("--images=$folder"); done
case ${CONTAINERD:-} in
'' | 1) ;;
2)
	containerd=$(hack/tool.sh containerd containerd)
	for program in containerd-shim-runc-v2 ctr; do hack/tool.sh containerd "$program" >/dev/null; done
	flags+=("--containerd=${containerd%/*}")
	;;
*)
	echo "CONTAINERD is $CONTAINERD: want 1 (Debian's) or 2" >&2
	exit 2
	;;
esac
KUBEBUILDER_ASSETS=$(hack/kubebox.sh)
exec "${as_root[@]}" env KUBEBUILDER_ASSETS="$KUBEBUILDER_ASSETS" bin/vpclab demo "${flags[@]}" "$@"
