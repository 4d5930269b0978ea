#!/usr/bin/env bash
# Regenerates everything in a copy of the tree. Fails and shows the difference when
# generated files or go.mod in the tree are out of date.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
trap 'exit 130' INT TERM HUP
cd "$root"
git ls-files -z --cached --others --exclude-standard --deduplicate |
	while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done |
	tar -c --null -T - | tar -x -C "$copy"

cd "$copy"
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE # set when run from a git hook
git init -q
git add -A -f

make generate
hack/slowly.sh "Tidying go.mod" go mod tidy

rm -rf web/node_modules web/*/node_modules # npm packages that make generate installed

# A comment records the version of Debian's protoc, which may differ.
git add -A -f -N
if ! git diff --exit-code -I '^//.*protoc +v[0-9.]+$'; then
	echo "Generated files are not current: run \`make generate\` and \`go mod tidy\`, and commit the result." >&2
	exit 1
fi
echo "Generated files are current."
