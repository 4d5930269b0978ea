#!/usr/bin/env bash
# Checks that this machine can run the whole nodes of a lab: namespaces, overlays and
# cgroups. Prints what is missing, and leaves nothing behind. It is quick, and meant to run
# before long builds. Needs root.
#
#   hack/check-machine.sh
set -euo pipefail

missing() {
	echo "This machine cannot run lab clusters: $1" >&2
	echo "They need root on the machine itself or in a privileged container (docs/guides/vpclab.md, \"Whole clusters: --kubelets\")." >&2
	exit 1
}
[ "$(id -u)" = 0 ] || missing "this is not root"
# The mounts disappear with the namespace.
why=$(unshare --net --mount --propagation private bash -ec '
	mount -t tmpfs tmpfs /run
	mkdir /run/upper /run/work /run/merged
	mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/upper,workdir=/run/work /run/merged' 2>&1) ||
	missing "namespaces and overlays: $why"
hierarchies=0
for root in /sys/fs/cgroup /sys/fs/cgroup/*; do
	case $(stat -f -c %T "$root" 2>/dev/null) in cgroupfs | cgroup2fs) ;; *) continue ;; esac
	why=$(mkdir "$root/berth-check-$$" 2>&1 && rmdir "$root/berth-check-$$" 2>&1) || missing "cgroups: $why"
	hierarchies=$((hierarchies + 1))
	[ "$root" != /sys/fs/cgroup ] || break # version 2 only: the directories below are groups
done
[ "$hierarchies" -gt 0 ] || missing "no cgroups are mounted at /sys/fs/cgroup"
