#!/usr/bin/env bash
# Runs a command as root in new namespaces: network (only lo, up), mounts (an empty /run),
# processes and, if the caller is not root, users. Everything that the command creates there
# disappears with it, and the machine's own network is never touched.
#
#   hack/sandbox.sh COMMAND [ARGUMENT...]
#
# With BERTH_LEFTOVERS=check, the exit code is 3 if the command leaves network namespaces,
# links, nftables tables or processes behind, whatever its own exit code. With
# BERTH_GRACE=SECONDS, an interrupt sends SIGTERM to the command and kills it after that
# time; otherwise it is killed immediately. The sandbox has no network access: fetch Go
# modules before entering it.
set -euo pipefail

if [ "${1:-}" != --inside ]; then
	flags=(--net --mount --pid --fork --kill-child --mount-proc)
	if [ "$(id -u)" != 0 ]; then
		flags+=(--user --map-root-user)
	fi
	if ! why=$(unshare "${flags[@]}" true 2>&1); then
		echo "hack/sandbox.sh: cannot create namespaces: $why" >&2
		echo "Run this as root (sudo -E make ...), or allow unprivileged user namespaces" >&2
		echo "(sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces," >&2
		echo "kernel.apparmor_restrict_unprivileged_userns). A container needs CAP_SYS_ADMIN." >&2
		exit 1
	fi
	# Short, because Unix sockets are created below it.
	SANDBOX_DIR=$(mktemp -d /tmp/bt.XXXXXX)
	mkdir -p /tmp/bt
	export SANDBOX_DIR
	setpriv --pdeathsig KILL unshare "${flags[@]}" "$0" --inside "$@" &
	sandbox=$!
	trap '{ kill -KILL "$sandbox" && wait "$sandbox"; } 2>/dev/null || true; rm -rf "$SANDBOX_DIR"' EXIT
	interrupted() {
		trap '' INT TERM HUP
		if [ -n "${BERTH_GRACE:-}" ]; then
			kill -TERM $(cat "/proc/$sandbox/task/$sandbox/children") || true
			trap 'exit 130' INT TERM HUP # on the second signal, exit immediately
			# Limited, because process 1 of the sandbox may not handle the signal yet.
			for ((i = 0; i < BERTH_GRACE + 10; i++)); do
				kill -0 "$sandbox" 2>/dev/null || break
				sleep 1
			done
		fi
		exit 130
	}
	trap interrupted INT TERM HUP
	wait "$sandbox"
	exit
fi

shift
# TMPDIR has the same name in every sandbox, because it is part of the key of Go's test
# cache.
export TMPDIR=/tmp/bt BERTH_TEST_BIN=/tmp/bt/bin # BERTH_TEST_BIN is for test/harness
mkdir "$SANDBOX_DIR/bin"
mount --bind "$SANDBOX_DIR" "$TMPDIR"
unset SANDBOX_DIR
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/netns # shared, so that its mounts reach containers, as if created by systemd or ip-netns(8)
mount --bind /run/netns /run/netns
mount --make-shared /run/netns
mount -t sysfs sysfs /sys 2>/dev/null || true # so that /sys/class/net is this namespace's
ip link set lo up
command=
interrupted() {
	trap '' INT TERM HUP
	if [ -n "${BERTH_GRACE:-}" ] && [ -n "$command" ]; then
		kill -TERM "$command"
		{ sleep "$BERTH_GRACE" && kill -KILL "$command"; } &
		wait "$command" || true
	fi
	exit 130 # when process 1 ends, everything in the sandbox ends
}
trap interrupted INT TERM HUP

status=0
"$@" &
command=$!
wait "$command" || status=$?
[ "${BERTH_LEFTOVERS:-}" = check ] || exit "$status"

# Everything here was created by the command, so nothing may remain.
leftovers() {
	ip netns list | sed 's/^/network namespace /'
	ip -o link | awk -F': ' '$2 != "lo" { print "link " $2 }'
	nft list tables | sed 's/^/nftables /'
	for family in -4 -6; do
		ip "$family" rule show | awk '$1 != "0:" && $1 != "32766:" && $1 != "32767:" { print "rule " $0 }'
	done
	local process args
	for process in /proc/[0-9]*; do
		case ${process#/proc/} in
		1 | "$BASHPID") ;; # this script and the subshell that runs this function
		*) args=$(tr '\0' ' ' 2>/dev/null <"$process/cmdline") && [ -n "$args" ] && echo "process $args" ;;
		esac
	done 2>/dev/null
	return 0
}
# A killed process and the links of a deleted namespace disappear with a delay.
for _ in 1 2 3 4 5 6 7 8 9 10; do
	left=$(leftovers)
	[ -n "$left" ] || exit "$status"
	sleep 1
done
{
	echo "LEFT BEHIND by: $*"
	while read -r line; do echo "  $line"; done <<<"$left"
} >&2
exit 3
