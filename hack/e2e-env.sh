#!/usr/bin/env bash
# Installs and builds what end-to-end tests of some packages need besides the sources, and
# prints it as variables for a shell: a release of this tree and, for whole clusters, images,
# Helm, containerd 2 and the previous release. If BERTH_RELEASE is set, that release is tested.
#
#   eval "$(hack/e2e-env.sh PACKAGE...)"      (hack/e2e-env.sh ./test/cluster)
#
# Other packages than those of make e2e get everything.
set -euo pipefail
cd "$(dirname "$0")/.."
unset MAKEFLAGS MAKELEVEL

deps=() release='' clusters='' multus='' docs=''
for package in "$@"; do
	case $package in
	./web/docs) deps+=(browser web) docs=yes ;;
	./web/*) deps+=(browser) ;;
	./test/guest) deps+=(test vm) ;;
	./test/e2e/neutron) deps+=(test neutron) release=yes ;;
	./test/e2e/alerts) deps+=(test ovn) release=yes ;;
	./test/e2e) deps+=(test e2e) release=yes multus=yes ;;
	./test/cluster) deps+=(test e2e cluster ovn) release=yes clusters=yes ;;
	*) deps+=(test e2e cluster neutron vm browser web) release=yes clusters=yes multus=yes docs=yes ;;
	esac
done

print() { printf 'export %s=%q\n' "$1" "$2"; } # print VARIABLE VALUE

{
	hack/deps.sh "${deps[@]}"
	[ -z "$multus" ] || hack/tool.sh multuscni multus
	if [ -n "$release" ] && [ -z "${BERTH_RELEASE:-}" ]; then make release; fi
	[ -z "$docs" ] || make docs
} >&2
[ -z "$release" ] || print BERTH_RELEASE "${BERTH_RELEASE:-$PWD/dist/release}"
if [ -n "$clusters" ]; then
	helm=$(hack/tool.sh helm helm) # assigned first: as an argument, a failure would go unnoticed
	print BERTH_HELM "$helm"
	for program in containerd-shim-runc-v2 ctr; do hack/tool.sh containerd "$program" >&2; done
	containerd=$(hack/tool.sh containerd containerd)
	print BERTH_CONTAINERD2 "${containerd%/*}"
	images=$(hack/lab-images.sh)
	print BERTH_LAB_IMAGES "$images"
	amazon=$(hack/lab-images.sh amazon-k8s-cni amazon-k8s-cni-init)
	print BERTH_LAB_IMAGES_AMAZON "$amazon"
	previous=$(hack/previous-release.sh)
	print BERTH_RELEASE_PREVIOUS "$previous"
fi
