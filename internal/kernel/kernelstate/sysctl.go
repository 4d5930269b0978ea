package kernelstate

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// sysctls are patterns, below /proc/sys, of what decides on packets of pods and on
// how many there may be.
var sysctls = []string{
	"kernel/osrelease", "kernel/pid_max", "kernel/threads-max", "fs/file-max", "fs/file-nr", "fs/inotify/max_user_*", "user/max_net_namespaces",
	"net/core/somaxconn", "net/core/netdev_max_backlog", "net/core/rmem_max", "net/core/wmem_max",
	"net/ipv4/ip_forward", "net/ipv4/ip_local_port_range", "net/ipv4/ip_local_reserved_ports", "net/ipv4/ip_nonlocal_bind", "net/ipv4/fib_multipath_hash_policy",
	"net/ipv4/tcp_mtu_probing", "net/ipv4/tcp_syncookies", "net/ipv4/neigh/default/gc_thresh*", "net/ipv6/neigh/default/gc_thresh*",
	"net/ipv4/conf/*/rp_filter", "net/ipv4/conf/*/forwarding", "net/ipv4/conf/*/proxy_arp", "net/ipv4/conf/*/route_localnet", "net/ipv4/conf/*/arp_ignore",
	"net/ipv4/conf/*/arp_announce", "net/ipv4/conf/*/arp_filter", "net/ipv4/conf/*/accept_local", "net/ipv4/conf/*/src_valid_mark", "net/ipv4/conf/*/send_redirects",
	"net/ipv6/conf/*/disable_ipv6", "net/ipv6/conf/*/forwarding", "net/ipv6/conf/*/accept_ra", "net/ipv6/conf/*/accept_dad", "net/ipv6/conf/*/proxy_ndp",
	"net/ipv6/conf/*/addr_gen_mode", "net/ipv6/route/max_size",
	"net/netfilter/nf_conntrack_count", "net/netfilter/nf_conntrack_max", "net/netfilter/nf_conntrack_buckets", "net/netfilter/nf_conntrack_tcp_be_liberal",
	"net/netfilter/nf_conntrack_tcp_loose", "net/netfilter/nf_conntrack_tcp_timeout_established", "net/bridge/bridge-nf-call-*",
}

// Sysctls writes the settings that matter to pods' packets. One that this kernel
// does not have is left out.
func Sysctls(w io.Writer) (failed error) {
	for _, pattern := range sysctls {
		files, err := filepath.Glob("/proc/sys/" + pattern)
		if err != nil {
			return fmt.Errorf("%s: %w", pattern, err)
		}
		for _, file := range files {
			value, err := os.ReadFile(file)
			if err != nil {
				if !errors.Is(err, os.ErrNotExist) { // a link that went
					failed = errors.Join(failed, err)
				}
				continue
			}
			if _, err := fmt.Fprintf(w, "%s = %s\n", strings.TrimPrefix(file, "/proc/sys/"), strings.TrimSpace(string(value))); err != nil {
				return err
			}
		}
	}
	return failed
}
