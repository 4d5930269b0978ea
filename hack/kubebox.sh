#!/usr/bin/env bash
# Prints the directory of real Kubernetes programs: etcd, kube-apiserver,
# kube-controller-manager, kube-scheduler, kubelet, kube-proxy and kubectl.
# If KUBEBUILDER_ASSETS is set, it is that directory; otherwise the programs are built once
# for this machine (tools/kubebox).
#
#   hack/kubebox.sh [--api]
#
# With --api, etcd and kube-apiserver suffice: if nothing has been built yet, it uses those
# of the same minor version from setup-envtest or another build on this machine.
set -euo pipefail

if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
	for name in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy; do
		[ ! -x "$KUBEBUILDER_ASSETS/$name" ] || continue
		echo "KUBEBUILDER_ASSETS is $KUBEBUILDER_ASSETS, which has no program $name." >&2
		case $name in
		etcd | kube-apiserver)
			echo "Set it to a directory with the program, or unset it to build the programs once for this machine." >&2
			exit 1
			;;
		*) echo "Commands that need it will fail; setup-envtest does not install it." >&2 ;;
		esac
	done
	realpath "$KUBEBUILDER_ASSETS"
	exit
fi
cd "$(dirname "$0")/.."

# installed prints a directory on this machine that contains both programs.
installed() {
	local folder version
	version=$(sed -n 's|^\tk8s.io/kubernetes \(v[0-9]*\.[0-9]*\)\..*|\1|p' tools/kubebox/go.mod)
	for folder in "${XDG_CACHE_HOME:-$HOME/.cache}"/berth/tools/kubebox-* \
		"${XDG_DATA_HOME:-$HOME/.local/share}"/kubebuilder-envtest/k8s/* /usr/local/kubebuilder/bin; do
		[ -x "$folder/etcd" ] && [ -x "$folder/kube-apiserver" ] || continue
		case $("$folder/kube-apiserver" --version 2>/dev/null) in
		"Kubernetes $version."*)
			echo "$folder"
			return
			;;
		esac
	done
	return 1
}
if [ "${1:-}" = --api ] && ! hack/tool.sh --built kubebox kubebox >/dev/null && folder=$(installed); then
	echo "Using the control plane in $folder." >&2
	echo "$folder"
	exit
fi
binary=$(hack/tool.sh kubebox kubebox)
folder=$(dirname "$binary")
# The program is selected by the name of its link.
for name in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl; do
	[ -e "$folder/$name" ] || ln -sf kubebox "$folder/$name"
done
echo "$folder"
