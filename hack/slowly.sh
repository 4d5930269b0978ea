#!/usr/bin/env bash
# Runs a command that may take long. One that is done within three seconds says
# nothing of itself; of another it is told what runs, every 30 seconds that it
# still does, and how long it took.
#
#   hack/slowly.sh WHAT COMMAND [ARGUMENT...]      (WHAT: "Building Berth")
set -euo pipefail

what=$1
shift
started=$SECONDS
(
	trap 'kill ${!:-} 2>/dev/null; exit' TERM
	pause() { sleep "$1" & wait $!; }
	pause 3
	echo "$what ..."
	while pause 30; do echo "  still: $what, $((SECONDS - started)) s"; done
) >&2 &
ticker=$!
trap 'kill "$ticker" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM HUP
"$@"
took=$((SECONDS - started))
[ "$took" -lt 3 ] || echo "$what: done in $took s." >&2
