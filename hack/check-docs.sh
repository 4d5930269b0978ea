#!/usr/bin/env bash
# Fails when a document names something that does not exist: a relative link, a heading of
# another page, a test, a make target, or a path in the tree. It also reads comments such as
# <!-- test: TestA, TestB/Case; bench: exec-add -->, and Go comments that name a page or, on
# one line, a heading of a page (docs/page.md, "Heading").
set -euo pipefail
cd "$(dirname "$0")/.."

bad=0
complain() { # complain FILE WHAT
	echo "$1: $2" >&2
	bad=1
}

# headings FILE prints the headings of a page.
headings() { sed -n 's/^#\{1,6\} //p' "$1"; }

# anchors FILE prints the anchors of the headings.
anchors() {
	headings "$1" | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'
}

tests=$(git grep -hoE --untracked '^func (Test|Fuzz|Benchmark)[A-Za-z0-9_]+' -- '*_test.go' | sed 's/^func //')
targets=$(sed -n 's/^\([a-z0-9-]*\):.*/\1/p' Makefile)

for doc in README.md CHANGELOG.md $(find docs -name '*.md'); do
	for link in $(grep -oE '\]\([^)]+\)' "$doc" | sed 's/^](//; s/)$//' | grep -v '^https\?:' || true); do
		target=${link%%#*}
		page=$doc
		if [ -n "$target" ]; then
			page=$(dirname "$doc")/$target
		fi
		if [ ! -e "$page" ]; then
			complain "$doc" "link to $link: no such file"
		elif [[ $link == *#* ]] && ! anchors "$page" | grep -qxF -- "${link#*#}"; then
			complain "$doc" "link to $link: no such heading"
		fi
	done
	for name in $(grep -oE '`(Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9_]*`' "$doc" | tr -d '`' || true); do
		grep -qxF "$name" <<<"$tests" || complain "$doc" "no test is called $name"
	done
	while read -r kind name; do
		if [ "$kind" = bench ]; then
			grep -qF "\"name\": \"$name\"" bench/results.json || complain "$doc" "bench/results.json has no figure $name"
		elif ! grep -qxF "${name%%/*}" <<<"$tests"; then
			complain "$doc" "no test is called ${name%%/*}"
		elif [[ $name == */* ]] && ! git grep -qE --untracked "\"([^\"]*/)?$(basename "$name" | sed 's/[][(){}.*+?^$|\\]/\\&/g; s/_/[ _]/g')\"" -- '*_test.go'; then
			complain "$doc" "$name: no test has a case ${name#*/}"
		fi
	done < <({ grep -oE '<!-- (test|bench): [^>]*-->' "$doc" || true; } | sed -E 's/^<!-- (.*[^ ]) *-->$/\1/' | tr ';' '\n' |
		awk '{ gsub(",", ""); kind = $1; sub(":", "", kind); for (i = 2; i <= NF; i++) print kind, $i }')
	for name in $(grep -oE '(^|`)make [a-z0-9-]+' "$doc" | sed 's/.*make //' || true); do
		grep -qxF "$name" <<<"$targets" || complain "$doc" "make has no target $name"
	done
	for name in $(grep -oE '`(internal|cmd|hack|test|tools|docs|deploy|api)/[A-Za-z0-9_./-]+`' "$doc" | tr -d '`' || true); do
		[ -e "$name" ] || complain "$doc" "no such path: $name"
	done
done

while IFS=: read -r file line name; do
	[ -e "$name" ] || complain "$file:$line" "no such page: $name; write its path from the root"
done < <(git grep -nE --untracked '//.*\.md' -- '*.go' | grep -v 'https\?://' |
	sed -nE 's|^([^:]+:[0-9]+):.*// ?(.*[ (`"])?([A-Za-z][A-Za-z0-9_./-]*\.md).*|\1:\3|p')

while IFS=: read -r file line text; do
	if [[ $text =~ \.md,?\ section|\.md,$|\.md,\ \"[^\"]*$ ]]; then
		complain "$file:$line" 'write the page and its heading on one line as: docs/page.md, "Heading"'
	elif [[ $text =~ ([A-Za-z0-9_./-]+\.md),\ \"([^\"]+)\" ]]; then
		page=${BASH_REMATCH[1]} heading=${BASH_REMATCH[2]}
		[ ! -e "$page" ] || headings "$page" | grep -qxF -- "$heading" ||
			complain "$file:$line" "$page has no heading \"$heading\""
	fi
done < <(git grep -nE --untracked '//.*\.md[ ,]' -- '*.go')
exit "$bad"
