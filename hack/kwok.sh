#!/usr/bin/env bash
# Prints a directory with KWOK's controller, kwok, and its configuration with its own stages of Nodes and Pods,
# stages.yaml: both of the version in tools/kwok. Pods get no addresses from KWOK, which may patch a Pod twice, with
# another address that the API server rejects, and repeats such a patch forever. By default, KWOK creates and renews
# four Leases at once, which is too slow for 2,000 nodes while the API server is busy.
set -euo pipefail
cd "$(dirname "$0")/.."

program=$(hack/tool.sh kwok kwok)
stages=$(dirname "$program")/stages.yaml
if [ ! "$stages" -nt hack/kwok.sh ]; then
	go -C tools/kwok mod download sigs.k8s.io/kwok
	module=$(go -C tools/kwok list -m -f '{{.Dir}}' sigs.k8s.io/kwok)
	trap 'rm -f "$stages.$$"' EXIT
	{
		# kwok adds no defaults to a configuration. The options below the first are its defaults.
		cat <<-'END'
			apiVersion: config.kwok.x-k8s.io/v1alpha1
			kind: KwokConfiguration
			options:
			  nodeLeaseParallelism: 64
			  nodePlayStageParallelism: 4
			  podPlayStageParallelism: 4
			  podsOnNodeSyncParallelism: 1
			  enablePodsOnNodeSyncListPager: true
		END
		for part in node/fast node/heartbeat-with-lease pod/fast; do
			for file in "$module/kustomize/stage/$part"/*.yaml; do
				[ "${file##*/}" = kustomization.yaml ] || { echo --- && cat "$file"; }
			done
		done
	} | awk '/podIPs :=/ { skip = 1 } /phase: Running/ { skip = 0 } !skip' >"$stages.$$"
	if grep -q podIP "$stages.$$"; then
		echo "hack/kwok.sh: the stages of this version of KWOK set podIPs elsewhere" >&2 && exit 1
	fi
	mv "$stages.$$" "$stages"
fi
dirname "$program"
