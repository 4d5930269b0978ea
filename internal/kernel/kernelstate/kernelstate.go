// Package kernelstate writes the network state of the current namespace as text: all links, addresses, routes, rules,
// neighbours and packet filters, like the programs ip, nft and sysctl, which images for nodes do not have. It changes
// nothing.
//
//	kernelstate.go  the parts; iptables tables that are loaded; settings
//	route.go        links, addresses, routes, rules, neighbours
//	nft.go          nftables
package kernelstate

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Part is one kind of state.
type Part struct {
	Name  string // of a file
	Write func(io.Writer) error
}

// Parts are all kinds. The output of a part that fails is incomplete but useful.
func Parts() []Part {
	return []Part{
		{"links.txt", Links}, {"routes.txt", Routes}, {"rules.txt", Rules}, {"neighbours.txt", Neighbours},
		{"nftables.txt", Nftables}, {"iptables.txt", Iptables}, {"sysctls.txt", Sysctls},
	}
}

// dumpTries is how often a dump is tried that changes interrupt (NLM_F_DUMP_INTR). The last result is used anyway.
const dumpTries = 5

func dump[T any](list func() ([]T, error)) ([]T, error) {
	for range dumpTries - 1 {
		if all, err := list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	all, err := list()
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		return all, fmt.Errorf("changes while it was read: %w", err)
	}
	return all, err
}

// families are those of routes, with the name that ip gives them.
var families = []struct {
	name   string
	family int
}{{"IPv4", unix.AF_INET}, {"IPv6", unix.AF_INET6}}

// words are the words of one line.
type words []string

// add adds a name and a value unless the value is a zero one.
func (w *words) add(name string, v any) {
	switch s := fmt.Sprint(v); s {
	case "", "0", "<nil>", "[]", "false":
	default:
		*w = append(*w, name, s)
	}
}

func (w words) line(out io.Writer) error {
	_, err := fmt.Fprintln(out, strings.Join(w, " "))
	return err
}

// sysctls are patterns below /proc/sys of the settings that affect pods' packets and limits.
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

// Sysctls writes the settings that affect pods' packets. It leaves out those that the kernel lacks.
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

// Iptables lists the tables of iptables-legacy and of iptables-nft. It does not write the rules of the former;
// Nftables writes those of the latter.
func Iptables(w io.Writer) error {
	var failed error
	for _, f := range []struct{ program, file string }{
		{"iptables-legacy", "ip_tables_names"}, {"ip6tables-legacy", "ip6_tables_names"}, {"arptables-legacy", "arp_tables_names"},
	} {
		names, err := os.ReadFile("/proc/thread-self/net/" + f.file)
		switch tables := strings.Fields(string(names)); {
		case errors.Is(err, fs.ErrNotExist):
			_, err = fmt.Fprintf(w, "%s: not in this kernel\n", f.program)
		case err == nil && len(tables) == 0:
			_, err = fmt.Fprintf(w, "%s: no table is loaded\n", f.program)
		case err == nil:
			_, err = fmt.Fprintf(w, "%s: tables %s are loaded\n", f.program, strings.Join(tables, ", "))
		}
		failed = errors.Join(failed, err)
	}
	return errors.Join(failed, iptablesNft(w))
}

func iptablesNft(w io.Writer) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	chains, err := conn.ListChains()
	if err != nil {
		return fmt.Errorf("list chains: %w", err)
	}
	found := map[string]int{}
	var failed error
	for _, c := range chains {
		if f := c.Table.Family; f != nftables.TableFamilyIPv4 && f != nftables.TableFamilyIPv6 {
			continue
		}
		rules, err := conn.GetRules(c.Table, c)
		failed = errors.Join(failed, err)
		if n := len(slices.DeleteFunc(rules, func(r *nftables.Rule) bool { return !slices.ContainsFunc(r.Exprs, isXtables) })); n > 0 {
			found[nftFamilies[c.Table.Family]+" "+c.Table.Name] += n
		}
	}
	if len(found) == 0 {
		_, err = fmt.Fprintln(w, "iptables-nft: no rule of its making")
	}
	for table, n := range found {
		_, lineErr := fmt.Fprintf(w, "iptables-nft: table %s has %d rules with its matches or targets\n", table, n)
		err = errors.Join(err, lineErr)
	}
	return errors.Join(failed, err)
}

// isXtables reports whether an expression is one that only iptables-nft makes.
func isXtables(e expr.Any) bool {
	switch e.(type) {
	case *expr.Match, *expr.Target:
		return true
	}
	return false
}
