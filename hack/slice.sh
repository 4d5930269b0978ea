#!/usr/bin/env bash
# Prints which of ten slices of the rotation this commit runs, 0 to 9: the number of
# commits on the first-parent line, modulo ten. A change that lands as one merge
# commit moves it by one, so ten such changes run all slices.
set -euo pipefail
cd "$(dirname "$0")/.."
commits=$(git rev-list --count --first-parent HEAD 2>/dev/null) || commits=0 # a tarball
# A shallow clone always has the same number of commits.
[ "$(git rev-parse --is-shallow-repository 2>/dev/null)" != true ] || commits=$((16#$(git rev-parse HEAD | cut -c 1-7)))
echo $((commits % 10))
