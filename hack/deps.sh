#!/usr/bin/env bash
# The only list of Debian packages. Installs missing packages and prints their names; prints
# nothing if all are installed.
#
#   hack/deps.sh GROUP...        groups: see packages() below
set -euo pipefail

# packages GROUP prints lines with a file to look for and the package that provides it.
packages() {
	case $1 in
	demo) cat <<-EOF ;;
		ip        iproute2
		ping      iputils-ping
	EOF
	pool) cat <<-EOF ;;
		bird      bird2
	EOF
	test) cat <<-EOF ;;
		bird      bird2
		ip        iproute2
		ping      iputils-ping
		unshare   util-linux
		nft       nftables
		iptables  iptables
		gcc       gcc
		/usr/include/stdlib.h   libc6-dev
		/usr/lib/cni/portmap    containernetworking-plugins
		/etc/ssl/certs          ca-certificates
	EOF
	e2e) cat <<-EOF ;;
		containerd   containerd
		runc         runc
		podman       podman
		conmon       conmon
	EOF
	cluster) cat <<-EOF ;;
		containerd   containerd
		runc         runc
		nft          nftables
		iptables     iptables
		ip           iproute2
		/usr/lib/cni/portmap    containernetworking-plugins
	EOF
	lab-images) cat <<-EOF ;;
		bash      bash
		busybox   busybox-static
		conntrack    conntrack
		curl      curl
		dig       bind9-dnsutils
		getent    libc-bin
		ip        iproute2
		nc.openbsd   netcat-openbsd
		timeout   coreutils
		wget      wget
	EOF
	ovs) cat <<-EOF ;;
		ovsdb-server  openvswitch-switch
		ovs-vswitchd  openvswitch-switch
	EOF
	ovn) cat <<-EOF ;;
		ovsdb-server  openvswitch-switch
		ovs-vswitchd  openvswitch-switch
		ovn-northd    ovn-central
		ovn-controller  ovn-host
	EOF
	neutron) cat <<-EOF ;;
		conntrack     conntrack
		epmd          erlang-base
		ipset         ipset
		iptables      iptables
		keystone-manage   python3-keystone
		mariadbd      mariadb-server-core
		neutron-server    neutron-common
		/usr/lib/python3/dist-packages/pymysql   python3-pymysql
		ovsdb-server  openvswitch-switch
		ovs-vswitchd  openvswitch-switch
		ovn-northd    ovn-central
		ovn-controller  ovn-host
		/usr/lib/rabbitmq/bin/rabbitmq-server    rabbitmq-server
	EOF
	vm) cat <<-EOF ;;
		qemu-system-x86_64    qemu-system-x86
		busybox   busybox-static
		ip        iproute2
		modprobe  kmod
		xz        xz-utils
	EOF
	generate) cat <<-EOF ;;
		protoc    protobuf-compiler
	EOF
	web) cat <<-EOF ;;
		node      nodejs
		npm       npm
	EOF
	browser) cat <<-EOF ;;
		chromium  chromium
		/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf    fonts-dejavu-core
	EOF
	ci) cat <<-EOF ;;
		make      make
		git       git
	EOF
	*)
		echo "hack/deps.sh: unknown group of packages $1" >&2
		exit 2
		;;
	esac
}

# services PACKAGE prints the services in a package. Only its programs are needed, so the
# services are not started, neither now nor at boot.
services() {
	case $1 in
	openvswitch-switch) echo ovs-vswitchd.service ovsdb-server.service openvswitch-switch.service ;;
	ovn-central) echo ovn-central.service ;;
	ovn-host) echo ovn-host.service ;;
	erlang-base) echo epmd.service epmd.socket ;;
	rabbitmq-server) echo rabbitmq-server.service ;;
	esac
}

missing=()
for group in "$@"; do
	list=$(packages "$group")
	while read -r thing package; do
		case $thing in
		/*) [ -e "$thing" ] || missing+=("$package") ;;
		*) PATH=$PATH:/usr/sbin:/sbin command -v "$thing" >/dev/null || missing+=("$package") ;;
		esac
	done <<<"$list"
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
	as_root=(sudo)
fi
if ! command -v apt-get >/dev/null || { [ ${#as_root[@]} -gt 0 ] && ! command -v sudo >/dev/null; }; then
	echo "Missing Debian packages: ${missing[*]}" >&2
	echo "Install them or your distribution's equivalents as root, and run this again." >&2
	exit 1
fi

echo "Installing Debian packages: ${missing[*]}" >&2
log=$(mktemp)
policy= # set if created here, for removal
trap 'rm -f "$log"; [ -z "$policy" ] || "${as_root[@]}" rm -f "$policy"' EXIT
unwanted=$(for package in "${missing[@]}"; do services "$package"; done)
# Debian's scripts call this program before they start a service (invoke-rc.d(8)).
if [ -n "$unwanted" ] && [ ! -e /usr/sbin/policy-rc.d ]; then
	policy=/usr/sbin/policy-rc.d
	printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
	"${as_root[@]}" chmod 755 "$policy"
fi
# apt_progress FILE reads apt-get's output and writes the progress (package N of TOTAL) to
# the file.
apt_progress() {
	local words total='' got=0 unpacked=0 set=0
	while read -ra words; do
		case ${words[*]} in
		*' newly installed, '*) total=$((words[0] + words[2])) ;;
		Get:*) echo "downloading package $((got += 1)) of $total, ${words[4]:-}" ;;
		Unpacking\ *) echo "unpacking package $((unpacked += 1)) of $total, ${words[1]}" ;;
		Setting\ up\ *) echo "setting up package $((set += 1)) of $total, ${words[2]}" ;;
		esac
	done >"$1"
}
export -f apt_progress
install() {
	# shellcheck disable=SC2016 # the inner shell's
	"$(dirname "$0")/slowly.sh" "Installing them" bash -c 'set -o pipefail; "$@" 2>&1 </dev/null | tee -a "$0" | apt_progress "$BERTH_PROGRESS"' "$log" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
		apt-get install -y -q --no-install-recommends -o Dpkg::Lock::Timeout=300 "${missing[@]}"
}
# A missing or old package list is the most common cause of a first failure.
if ! install; then
	# shellcheck disable=SC2016 # the inner shell's
	if ! { "$(dirname "$0")/slowly.sh" "Fetching the package lists" bash -c '"$@" >>"$0" 2>&1 </dev/null' "$log" "${as_root[@]}" apt-get update -q && install; }; then
		cat "$log" >&2
		echo "apt-get could not install: ${missing[*]}" >&2
		exit 1
	fi
fi
if [ -n "$unwanted" ] && [ -d /run/systemd/system ]; then
	# shellcheck disable=SC2086 # several
	"${as_root[@]}" systemctl disable --now --quiet $unwanted >>"$log" 2>&1 || true # only those that exist
fi
