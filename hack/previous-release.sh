#!/usr/bin/env bash
# Prints the directory of the release before this commit, from which tests upgrade (make
# e2e), and builds it first if this machine does not have it: from the newest tag of a
# release among the ancestors, or from a pinned commit while there is none. It has
# images for this machine's architecture only.
#
#   hack/previous-release.sh
#
# Releases are cached outside the tree, by commit and Go version.
set -euo pipefail
cd "$(dirname "$0")/.."

commit=7f73dc8466d7 version=v0.0.1
if tag=$(git describe --tags --abbrev=0 --match 'v[0-9]*' --exclude '*-*' 'HEAD^' 2>/dev/null); then
	commit=$tag version=$tag
fi
if ! commit=$(git rev-parse --verify --quiet "$commit^{commit}"); then
	echo "hack/previous-release.sh: this clone lacks the commit of the previous release: run git fetch --unshallow --tags" >&2
	exit 1
fi
arch=$(go env GOARCH)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/berth/releases/$version-${commit:0:12}-$(go env GOVERSION)-$arch
if [ ! -d "$cache" ]; then
	mkdir -p "${cache%/*}"
	tree=$(mktemp -d "$cache.XXXXXX")
	trap 'rm -rf "$tree"' EXIT
	trap 'exit 130' INT TERM HUP
	git archive "$commit" | tar -x -C "$tree"
	unset MAKEFLAGS MAKELEVEL GOFLAGS
	echo "Building the previous release, $version, from its own sources ..." >&2
	if grep -q '^release:' "$tree/Makefile"; then
		make -C "$tree" release VERSION="$version" RELEASE_ARCHS="$arch" >&2
	else # before there was `make release`
		(
			cd "$tree"
			hack/images.sh -version "$version" -archs "$arch" -- -formats layout >&2
			make chart VERSION="$version" >&2
			mkdir dist/release
			mv dist/berth-*.tgz dist/release
			for layout in dist/images/*/; do
				tar -C "$layout" -cf "dist/release/$(basename "$layout")-$version.oci.tar" .
			done
			sed 's|^|docker.io/library/|' dist/images/digests.txt >dist/release/images.txt
		)
	fi
	mv -T "$tree/dist/release" "$cache" 2>/dev/null || [ -d "$cache" ] # another process may have been first
fi
echo "$cache"
