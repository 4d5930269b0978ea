#!/usr/bin/env bash
# Checks that a release depends only on the sources: builds it from two copies of the
# tree with different directory names, file times, umask and time zone, and compares all
# files. Then installs kubectl-berth with krew from the manifest and archives, as each
# platform, without a network.
#
#   hack/check-release.sh [ARCH...]      (default: this machine's architecture)
set -euo pipefail
cd "$(dirname "$0")/.."

archs=${*:-$(go env GOARCH)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP
unset MAKEFLAGS MAKELEVEL

# build DIR TIME builds the release of a copy of the tree in DIR, with the programs of
# tools/ that have already been built.
build() {
	mkdir -p "$1"
	git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
		[ ! -e "$file" ] || printf '%s\0' "$file"
	done | xargs -0 cp --parents -t "$1"
	find "$1" -exec touch -h -d "$2" {} +
	make -C "$1" release RELEASE_ARCHS="$archs" >/dev/null
}

echo "Building the release from the first copy of the tree ..." >&2
(build "$work/a" 2001-02-03)
echo "Building the release from the second copy ..." >&2
(umask 077 && export TZ=Asia/Tokyo GOFLAGS=-buildvcs=true && build "$work/another folder/of another name" 2020-06-07)
if ! diff -r "$work/a/dist/release" "$work/another folder/of another name/dist/release"; then
	echo "The same sources produced different releases." >&2
	exit 1
fi
release=$work/a/dist/release
cat "$release/SHA256SUMS"

krew=$(hack/tool.sh krew krew)
for archive in "$release"/kubectl-berth-*.tar.gz; do
	platform=${archive##*/}
	IFS=- read -r os arch <<<"$(sed -E 's/.*-([a-z]+)-([a-z0-9]+)\.tar\.gz$/\1-\2/' <<<"$platform")"
	export KREW_ROOT=$work/krew/$os-$arch KREW_OS=$os KREW_ARCH=$arch
	"$krew" install --manifest="$release/krew-berth.yaml" --archive="$archive" >"$work/krew.log" 2>&1 </dev/null || {
		cat "$work/krew.log" >&2
		echo "krew does not install $platform." >&2
		exit 1
	}
	built=$(go version -m "$KREW_ROOT/bin/kubectl-berth" | sed -nE 's/.*\tGO(OS|ARCH)=//p' | paste -sd-)
	if [ "$built" != "$arch-$os" ]; then
		echo "$platform has a program for $built, expected $arch-$os." >&2
		exit 1
	fi
	if [ "$os-$arch" = "$(go env GOOS)-$(go env GOARCH)" ]; then
		"$KREW_ROOT/bin/kubectl-berth" version
	fi
done
echo "krew installs kubectl-berth on all platforms of its manifest." >&2
