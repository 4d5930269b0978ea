#!/usr/bin/env bash
# Prints a directory with images for lab clusters as tar archives for
# `ctr image import`: NAME-ARCH.tar for each NAME of registry.k8s.io in
# hack/lab-images.yaml, or for the given names. Nothing comes from a registry: programs are built from Go
# modules, and the files that upstream images take from a distribution come from
# this machine (hack/deps.sh lab-images).
#
#   hack/lab-images.sh [NAME...]      (hack/lab-images.sh pause coredns)
#
# Archives are cached outside the tree, by the checksum of their content, so that
# fresh clones share them.
set -euo pipefail
cd "$(dirname "$0")/.."

names=("$@")
if [ ${#names[@]} -eq 0 ]; then
	mapfile -t names < <(sed -n 's|^  - name: registry.k8s.io/\(.*/\)\{0,1\}\([^/:]*\):.*|\2|p' hack/lab-images.yaml)
fi
arch=$(go env GOARCH)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/berth/lab-images

files=$(mktemp -d)
trap 'rm -rf "$files"' EXIT
trap 'exit 130' INT TERM HUP

# host PROGRAM... adds programs of this machine's distribution, whatever else is in PATH.
host() {
	mkdir -p "$files/host"
	local program path
	for program in "$@"; do
		path=$(PATH=/usr/sbin:/usr/bin:/sbin:/bin:$PATH command -v "$program")
		ln -sf "$(realpath "$path")" "$files/host/$program"
	done
}

# gather NAME puts the files of an image where hack/lab-images.yaml expects them.
gather() {
	case $1 in
	pause) ln -sf "$(hack/tool.sh images pause)" "$files/pause" ;;
	coredns) ln -sf "$(hack/tool.sh coredns coredns)" "$files/coredns" ;;
	agnhost)
		hack/deps.sh lab-images
		ln -sf "$(hack/tool.sh kubee2e agnhost)" "$files/agnhost"
		ln -sf "$(hack/tool.sh coredns coredns)" "$files/coredns"
		ln -sfn "$(go -C tools/kubee2e list -m -f '{{.Dir}}' k8s.io/kubernetes)/test/images/agnhost/porter" "$files/agnhost-files"
		host bash busybox curl dig getent ip nc.openbsd ss timeout wget
		;;
	busybox | nginx)
		hack/deps.sh lab-images
		host busybox wget
		;;
	distroless-iptables)
		hack/deps.sh lab-images
		host busybox conntrack
		;;
	amazon-k8s-cni | amazon-k8s-cni-init)
		hack/deps.sh lab-images
		local of
		for of in aws-vpc-cni aws-vpc-cni-init aws-k8s-agent routed-eni-cni-plugin egress-cni-plugin grpc-health-probe; do
			ln -sf "$(hack/tool.sh amazonvpccni "$of")" "$files/$of"
		done
		ln -sf "$(go -C tools/amazonvpccni list -m -f '{{.Dir}}' github.com/aws/amazon-vpc-cni-k8s)/misc/10-aws.conflist" "$files/10-aws.conflist"
		host xtables-nft-multi
		ln -sfn "$(echo /usr/lib/*/xtables)" "$files/xtables"
		;;
	regression-issue-74839) ln -sf "$(hack/tool.sh kubee2e regression-issue-74839)" "$files/regression-issue-74839" ;;
	*)
		echo "hack/lab-images.sh: hack/lab-images.yaml has no image $1" >&2
		exit 1
		;;
	esac
}

for name in "${names[@]}"; do gather "$name"; done
packer=$(hack/tool.sh images images)

# One directory per set of images, so that callers can import all of it.
key=$({
	echo "${names[*]} $arch"
	cat hack/lab-images.yaml
	find -L "$packer" "$files" -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | cut -d' ' -f1
} | sha256sum | cut -c1-12)
folder=$cache/$key
if [ ! -d "$folder" ]; then
	mkdir -p "$cache"
	rm -rf "$folder.$$"
	trap 'rm -rf "$files" "$folder.$$"' EXIT
	only=$(IFS=,; echo "${names[*]}")
	hack/slowly.sh "Packing images for clusters of the lab" \
		"$packer" -spec hack/lab-images.yaml -files "$files" -out "$folder.$$" -only "$only" \
		-platforms "linux/$arch" -formats archive -compress=false >/dev/null
	mv -T "$folder.$$" "$folder" 2>/dev/null || [ -d "$folder" ] # another process may have been first
fi
echo "$folder"
