#!/usr/bin/env bash
# Prints which of ten slices of the rotation this commit runs, 0 to 9: the number of
# commits on the first-parent line, modulo ten. A change that lands as one merge
# commit moves it by one, so ten such changes run all slices.
set -euo pipefail
cd "$(dirname "$0")/.."
commits=$(git rev-list --count --first-parent HEAD 2>/dev/null) || commits=0 # a tarball
echo $((commits % 10))
