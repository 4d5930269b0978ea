#!/usr/bin/env bash
# Checks that a release depends only on the sources: builds it from two copies of the
# tree with different directory names, file times, umask and time zone, and compares all
# files.
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
cat "$work/a/dist/release/SHA256SUMS"
