#!/usr/bin/env bash
# Prints the folder of a real Kubernetes control plane: etcd, kube-apiserver,
# kube-controller-manager and kube-scheduler. KUBEBUILDER_ASSETS names one that
# is there already; else it is built once for this machine (tools/kubebox).
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
	echo "$KUBEBUILDER_ASSETS"
	exit
fi
folder=$(dirname "$(hack/tool.sh kubebox kubebox)")
# The program goes by the name it is started with. envtest wants to see a
# kubectl, and never runs it.
for name in etcd kube-apiserver kube-controller-manager kube-scheduler kubectl; do
	[ -e "$folder/$name" ] || ln -sf kubebox "$folder/$name"
done
echo "$folder"
