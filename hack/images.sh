#!/usr/bin/env bash
# Builds Berth's programs and packs them into OCI images as described in deploy/images.yaml.
# The digests depend only on the commit, not on the directory, the clock or the environment.
#
#   hack/images.sh [-version VERSION] [-archs "amd64 arm64"] [-clients "darwin"] [-out DIR] [-- FLAG...]
#
# CLIENTS are further operating systems for which it builds berthctl alone, which is also
# kubectl-berth: into dist/programs/SYSTEM-ARCH. FLAGS are additional flags of tools/images.
set -euo pipefail
cd "$(dirname "$0")/.."

version=dev archs="amd64 arm64" clients="" out=dist/images
while [ $# -gt 0 ]; do
	case $1 in
	-version) version=$2 ;;
	-archs) archs=$2 ;;
	-clients) clients=$2 ;;
	-out) out=$2 ;;
	--)
		shift
		break
		;;
	*)
		echo "hack/images.sh: unknown flag $1, expected -version, -archs, -clients or -out" >&2
		exit 2
		;;
	esac
	shift 2
done
revision=$(git rev-parse HEAD 2>/dev/null || true)
if [ -n "$revision" ] && [ -n "$(git status --porcelain 2>/dev/null)" ]; then
	revision=$revision-dirty
fi

# Override settings of this machine's Go that would change the programs.
export GOFLAGS='' GOEXPERIMENT='' GOAMD64=v1 GOARM64=v8.0 GOOS=linux CGO_ENABLED=0
packer=$(GOOS='' hack/tool.sh images images)

programs=dist/programs platforms=
ldflags="-s -w -buildid= -X github.com/berthnet/berth/internal/version.Version=$version"
plugins=github.com/containernetworking/plugins
plugins_version=$(go -C tools/cniplugins list -m -f '{{.Version}}' "$plugins")
for arch in $archs; do
	platforms+=${platforms:+,}linux/$arch
	rm -rf "${programs:?}/$arch"
	mkdir -p "$programs/$arch/cni"
	GOARCH=$arch hack/slowly.sh "Building Berth's programs for $arch (the first time takes some minutes)" \
		go build -trimpath -buildvcs=false -tags grpcnotrace \
		-ldflags "$ldflags" \
		-o "$programs/$arch/" ./cmd/berthd ./cmd/berth ./cmd/berthctl ./cmd/berth-operator ./cmd/berth-egress
	# The CNI plugins that Berth chains, for nodes without them.
	GOARCH=$arch hack/slowly.sh "Building the chained plugins for $arch" \
		go -C tools/cniplugins build -trimpath -buildvcs=false \
		-ldflags "-s -w -buildid= -X $plugins/pkg/utils/buildversion.BuildVersion=$plugins_version" \
		-o "$PWD/$programs/$arch/cni/" "$plugins"/plugins/{main/loopback,meta/portmap,meta/bandwidth}
	for system in $clients; do
		rm -rf "${programs:?}/$system-$arch"
		GOOS=$system GOARCH=$arch hack/slowly.sh "Building berthctl for $system on $arch" \
			go build -trimpath -buildvcs=false -tags grpcnotrace -ldflags "$ldflags" -o "$programs/$system-$arch/" ./cmd/berthctl
	done
done

hack/slowly.sh "Packing images" \
	"$packer" -spec deploy/images.yaml -files "$programs" -out "$out" -platforms "$platforms" \
	-version "$version" -revision "$revision" -source https://github.com/berthnet/berth -licenses Apache-2.0 "$@"
