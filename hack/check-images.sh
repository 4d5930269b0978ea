#!/usr/bin/env bash
# Checks that Berth's images depend only on the sources: packs them from two copies of the
# tree with different directory names, file times, umask and time zone, and compares all
# files.
#
#   hack/check-images.sh [ARCH...]      (default: this machine's architecture)
set -euo pipefail
cd "$(dirname "$0")/.."

archs=${*:-$(go env GOARCH)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP

# pack DIR packs the images of a copy of the tree in DIR, with the programs of
# tools/ that have already been built.
pack() {
	mkdir -p "$1"
	git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
		[ ! -e "$file" ] || printf '%s\0' "$file"
	done | xargs -0 cp --parents -t "$1"
	find "$1" -exec touch -h -d "$2" {} +
	(cd "$1" && hack/images.sh -version v0.0.0-check -archs "$archs" >/dev/null)
}

echo "Packing the images from the first copy of the tree ..." >&2
(pack "$work/a" 2001-02-03)
echo "Packing the images from the second copy ..." >&2
(umask 077 && export TZ=Asia/Tokyo GOFLAGS=-buildvcs=true && pack "$work/another folder/of another name" 2020-06-07)
if ! diff -r "$work/a/dist/images" "$work/another folder/of another name/dist/images"; then
	echo "The same sources produced different images." >&2
	exit 1
fi
cat "$work/a/dist/images/digests.txt"
