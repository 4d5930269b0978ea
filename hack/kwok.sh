#!/usr/bin/env bash
# Prints a directory with KWOK's controller, kwok, and its own stages of Nodes and Pods,
# stages.yaml: both of the version in tools/kwok.
set -euo pipefail
cd "$(dirname "$0")/.."

program=$(hack/tool.sh kwok kwok)
stages=$(dirname "$program")/stages.yaml
if [ ! -e "$stages" ]; then
	go -C tools/kwok mod download sigs.k8s.io/kwok
	module=$(go -C tools/kwok list -m -f '{{.Dir}}' sigs.k8s.io/kwok)
	trap 'rm -f "$stages.$$"' EXIT
	for part in node/fast node/heartbeat-with-lease pod/fast; do
		for file in "$module/kustomize/stage/$part"/*.yaml; do
			[ "${file##*/}" = kustomization.yaml ] || { echo --- && cat "$file"; }
		done
	done >"$stages.$$"
	mv "$stages.$$" "$stages"
fi
dirname "$program"
