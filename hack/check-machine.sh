#!/usr/bin/env bash
# Fails, and says what is missing, when this machine does not let whole machines of
# a lab be: their namespaces, overlays and cgroups. Leaves nothing behind. Runs in a
# moment, so that nobody builds for minutes first. Needs root.
#
#   hack/check-machine.sh
set -euo pipefail

missing() {
	echo "This machine cannot have clusters of the lab: $1" >&2
	echo "They need root of the machine itself or of a privileged container (docs/vpclab.md, \"Whole clusters: --kubelets\")." >&2
	exit 1
}
[ "$(id -u)" = 0 ] || missing "this is not root"
# The mounts go with the namespace.
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
	[ "$root" != /sys/fs/cgroup ] || break # version 2 alone: what is below is its groups
done
[ "$hierarchies" -gt 0 ] || missing "no cgroups are mounted at /sys/fs/cgroup"
