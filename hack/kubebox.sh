#!/usr/bin/env bash
# Prints the folder of a real Kubernetes: etcd, kube-apiserver,
# kube-controller-manager, kube-scheduler, kubelet, kube-proxy and kubectl.
# KUBEBUILDER_ASSETS names one that is there already; else it is built once for
# this machine (tools/kubebox).
set -euo pipefail

if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
	for name in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy; do
		[ ! -x "$KUBEBUILDER_ASSETS/$name" ] || continue
		echo "KUBEBUILDER_ASSETS is $KUBEBUILDER_ASSETS, which has no program $name." >&2
		case $name in
		etcd | kube-apiserver)
			echo "Name a folder that has it, or unset KUBEBUILDER_ASSETS: then it is built, once for this machine." >&2
			exit 1
			;;
		*) echo "What needs it will fail; setup-envtest's folders are without it." >&2 ;;
		esac
	done
	realpath "$KUBEBUILDER_ASSETS"
	exit
fi
cd "$(dirname "$0")/.."
binary=$(hack/tool.sh kubebox kubebox)
folder=$(dirname "$binary")
# The program goes by the name it is started with.
for name in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl; do
	[ -e "$folder/$name" ] || ln -sf kubebox "$folder/$name"
done
echo "$folder"
