#!/usr/bin/env bash
# Runs a command that may take long. If it takes longer than three seconds, prints its
# description, its progress about every 30 seconds, and its duration. For go build, go vet
# and go test -c the progress is the number of compiled packages. Other commands may write
# their progress to the file $BERTH_PROGRESS, whose last line is shown; with --progress,
# lines of stderr that match a regular expression are the progress.
#
#   hack/slowly.sh [--progress REGEX] WHAT COMMAND [ARGUMENT...]      (WHAT: "Building Berth")
set -euo pipefail

regex=
if [ "$1" = --progress ]; then
	regex=$2
	shift 2
fi
what=$1
shift
started=$SECONDS
BERTH_PROGRESS=$(mktemp)
export BERTH_PROGRESS

# list_stale is a go list command with the packages and flags of the build. It prints the
# packages to compile, in the order in which Go starts them.
list_stale=() before=()
while [ $# -gt 0 ] && [ "$1" != go ]; do
	before+=("$1")
	shift
done
for argument in "$@"; do
	case ${skip:-}$argument in
	build | vet) list_stale+=(list -deps -f '{{if .Stale}}{{.ImportPath}}{{end}}') verb=found ;;
	test) list_stale+=(list -deps -test -f '{{if .Stale}}{{.ImportPath}}{{end}}') verb=found ;;
	-o) skip=value: ;;
	value:*) skip= ;;
	-o=* | -c) ;;
	*) list_stale+=("$argument") ;;
	esac
done
[ -n "${verb:-}" ] || list_stale=()
set -- "${before[@]}" "$@"

# packages writes the number of compiled packages to $BERTH_PROGRESS.
packages() {
	[ ${#list_stale[@]} -gt 0 ] || return 0
	local stale left
	stale=$("${list_stale[@]}" 2>/dev/null) || return 0
	left=$(grep -c . <<<"$stale") || true
	[ -n "${total:-}" ] || total=$left
	stale=${stale%%$'\n'*}
	echo "$((total - left)) of $total packages compiled, now ${stale:-linking}" >"$BERTH_PROGRESS"
}

(
	trap 'kill ${!:-} 2>/dev/null; exit' TERM
	pause() { sleep "$1" & wait $!; }
	pause 3
	echo "$what ..."
	for ((wait = 5; ; wait = 20)); do
		packages
		pause "$wait"
		far=$(tail -n 1 "$BERTH_PROGRESS")
		echo "  still: $what, $((SECONDS - started)) s${far:+: $far}"
	done
) >&2 &
ticker=$!
trap 'kill "$ticker" 2>/dev/null || true; rm -f "$BERTH_PROGRESS"' EXIT
trap 'exit 130' INT TERM HUP
if [ -n "$regex" ]; then
	# Waits for the filter before it reports the end of the command.
	{ "$@" 2>&1 >&3 3>&- | while IFS= read -r line; do
		if [[ $line =~ $regex ]]; then echo "$line" >"$BERTH_PROGRESS"; else echo "$line" >&2; fi
	done; } 3>&1
else
	"$@"
fi
took=$((SECONDS - started))
[ "$took" -lt 3 ] || echo "$what: done in $took s." >&2
