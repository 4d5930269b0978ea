#!/usr/bin/env bash
# Prints the slice of the rotation for this commit, 0 to 9: the number of commits on the
# first-parent line, modulo ten. Each merged change advances it by one, so ten changes run
# all slices.
set -euo pipefail
cd "$(dirname "$0")/.."
commits=$(git rev-list --count --first-parent HEAD 2>/dev/null) || commits=0 # a tarball
# In a shallow clone the number of commits is constant, so use the commit's hash.
[ "$(git rev-parse --is-shallow-repository 2>/dev/null)" != true ] || commits=$((16#$(git rev-parse HEAD | cut -c 1-7)))
echo $((commits % 10))
