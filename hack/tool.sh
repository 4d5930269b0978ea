#!/usr/bin/env bash
# Prints the path of a Go program from a module under tools/, and builds it first if this
# machine does not have that version. The program is one that the module pins with a tool
# line, or the module itself. NAME.test is the test program of the package NAME of a tool
# line. The module's file "ldflags" has additional linker flags, the file "tags" build tags.
#
#   hack/tool.sh [--built] MODULE PROGRAM      (hack/tool.sh lint golangci-lint)
#
# With --built, it fails instead of building.
#
# Binaries are stored outside the tree, by the checksum of the module's files and the Go
# version, so that fresh clones share them.
set -euo pipefail

build=yes
if [ "$1" = --built ]; then
	build=
	shift
fi
module=$1 program=$2

# slow MODULE prints the build time of slow modules, on two idle cores.
slow() {
	case $1 in
	lint | amazonvpccni | helm) echo ", which takes some minutes" ;;
	prometheus) echo ", which takes one to two minutes" ;;
	coredns | kwok) echo ", which takes one to two minutes" ;;
	containerd | multuscni) echo ", which takes about a minute" ;;
	kubee2e) echo " (the tests of Kubernetes), which takes 3 to 6 minutes" ;;
	kubebox) echo " (etcd and Kubernetes), which takes 6 to 12 minutes" ;;
	esac
}
root=$(cd "$(dirname "$0")/.." && pwd)
dir=$root/tools/$module

if package=$(cd "$dir" && go list tool 2>/dev/null | grep "/${program%.test}\$"); then
	:
elif [ "$module" = "$program" ]; then
	package=.
elif ! package=$(cd "$dir" && go list tool | grep "/$program\$"); then
	echo "hack/tool.sh: $dir/go.mod has no tool line for $program" >&2
	exit 1
fi
key=$(find "$dir" -type f | LC_ALL=C sort | xargs -d '\n' cat | sha256sum | cut -c1-12)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/berth/tools/$module-$key-$(go env GOVERSION)-$(go env GOARCH)
binary=$cache/$program

if [ ! -x "$binary" ]; then
	[ -n "$build" ] || exit 1
	mkdir -p "$cache"
	trap 'rm -f "$binary.$$"' EXIT
	trap 'exit 130' INT TERM HUP
	command=(build)
	[ "$program" = "${program%.test}" ] || command=(test -c)
	ldflags="-s -w $(cat "$dir/ldflags" 2>/dev/null || true)"
	CGO_ENABLED=0 "$root/hack/slowly.sh" "Building $program once for this version$(slow "$module")" \
		go -C "$dir" "${command[@]}" -trimpath -tags="$(cat "$dir/tags" 2>/dev/null || true)" -ldflags="$ldflags" -o "$binary.$$" "$package" >&2
	mv "$binary.$$" "$binary"
fi
echo "$binary"
