#!/usr/bin/env bash
# Builds the documentation as static files: dist/docs/VERSION, beside it the newest released
# version before it (the docs/ of its tag, by this tree's generator), versions.json, which the
# pages' list of versions is read from, and index.html, which leads to VERSION.
#
#   hack/docs.sh VERSION
set -euo pipefail
cd "$(dirname "$0")/.."

version=$1
root=dist/docs

build() { # build VERSION FOLDER
	hack/slowly.sh "Building the documentation of $1" bash -c '"$@" >"$0" 2>&1 || { cat "$0" >&2; exit 1; }' "$log" \
		env DOCS_VERSION="$1" DOCS_SOURCE="$2" DOCS_OUT="$root/$1" npm run build --prefix web -w docs --silent
}

log=$(mktemp) source=$(mktemp -d)
trap 'rm -rf "$log" "$source"' EXIT
rm -rf "$root"
mkdir -p "$root"
build "$version" docs
versions=("$version")

# A tag from before the pages had this layout has no docs/start.
previous=$(git tag --list 'v[0-9]*' --sort=-version:refname --no-contains HEAD --merged HEAD | grep -vxF "$version" | head -n 1 || true)
if [ -n "$previous" ] && git cat-file -e "$previous:docs/start" 2>/dev/null; then
	git archive "$previous" docs | tar -x -C "$source"
	build "$previous" "$source/docs"
	versions+=("$previous")
fi

printf '%s\n' "${versions[@]}" | sed 's/.*/"&"/' | paste -sd, | sed 's/.*/[&]/' >"$root/versions.json"
cat >"$root/index.html" <<HTML
<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Berth</title><meta http-equiv="refresh" content="0; url=$version/"></head>
<body><a href="$version/">Documentation of Berth $version</a></body>
</html>
HTML
