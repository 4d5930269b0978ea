#!/usr/bin/env bash
# Prints a directory with KWOK's controller, kwok, and its own stages of Nodes and Pods,
# stages.yaml: both of the version in tools/kwok. Pods get no addresses from KWOK, which may patch a Pod twice, with
# another address that the API server rejects, and repeats such a patch forever.
set -euo pipefail
cd "$(dirname "$0")/.."

program=$(hack/tool.sh kwok kwok)
stages=$(dirname "$program")/stages.yaml
if [ ! "$stages" -nt hack/kwok.sh ]; then
	go -C tools/kwok mod download sigs.k8s.io/kwok
	module=$(go -C tools/kwok list -m -f '{{.Dir}}' sigs.k8s.io/kwok)
	trap 'rm -f "$stages.$$"' EXIT
	for part in node/fast node/heartbeat-with-lease pod/fast; do
		for file in "$module/kustomize/stage/$part"/*.yaml; do
			[ "${file##*/}" = kustomization.yaml ] || { echo --- && cat "$file"; }
		done
	done | awk '/podIPs :=/ { skip = 1 } /phase: Running/ { skip = 0 } !skip' >"$stages.$$"
	if grep -q podIP "$stages.$$"; then
		echo "hack/kwok.sh: the stages of this version of KWOK set podIPs elsewhere" >&2 && exit 1
	fi
	mv "$stages.$$" "$stages"
fi
dirname "$program"
