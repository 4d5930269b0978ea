// Package kernelstate writes the network state of the current namespace as text: all links, addresses, routes, rules,
// neighbours and packet filters, like the programs ip, nft and sysctl, which images for nodes do not have. It changes
// nothing.
//
//	kernelstate.go  the parts; iptables tables that are loaded; sysctls
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
	Name string // of a file
	text func() (text, error)
}

// Parts are all kinds.
func Parts() []Part {
	return []Part{
		{"links.txt", links}, {"routes.txt", routes}, {"rules.txt", rules}, {"neighbours.txt", neighbours},
		{"nftables.txt", nftablesText}, {"iptables.txt", iptables}, {"sysctls.txt", settings},
	}
}

// Write writes the state. What it writes is incomplete but useful if it returns an error.
func (p Part) Write(w io.Writer) error {
	lines, err := p.text()
	_, writeErr := w.Write(lines)
	return errors.Join(err, writeErr)
}

// text is lines of state.
type text []byte

func (t *text) line(format string, args ...any) { *t = append(fmt.Appendf(*t, format, args...), '\n') }

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

func (t *text) words(w words) { t.line("%s", strings.Join(w, " ")) }

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

// settings are those that affect pods' packets, without those that the kernel lacks.
func settings() (t text, failed error) {
	for _, pattern := range sysctls {
		files, err := filepath.Glob("/proc/sys/" + pattern)
		if err != nil {
			return t, fmt.Errorf("%s: %w", pattern, err)
		}
		for _, file := range files {
			value, err := os.ReadFile(file)
			switch {
			case err == nil:
				t.line("%s = %s", strings.TrimPrefix(file, "/proc/sys/"), strings.TrimSpace(string(value)))
			case !errors.Is(err, os.ErrNotExist): // a link that went
				failed = errors.Join(failed, err)
			}
		}
	}
	return t, failed
}

// iptables lists the tables of iptables-legacy and of iptables-nft. It does not have the rules of the former;
// nftablesText has those of the latter.
func iptables() (t text, failed error) {
	for _, f := range []struct{ program, file string }{
		{"iptables-legacy", "ip_tables_names"}, {"ip6tables-legacy", "ip6_tables_names"}, {"arptables-legacy", "arp_tables_names"},
	} {
		names, err := os.ReadFile("/proc/thread-self/net/" + f.file)
		switch tables := strings.Fields(string(names)); {
		case errors.Is(err, fs.ErrNotExist):
			t.line("%s: not in this kernel", f.program)
		case err != nil:
			failed = errors.Join(failed, err)
		case len(tables) == 0:
			t.line("%s: no table is loaded", f.program)
		default:
			t.line("%s: tables %s are loaded", f.program, strings.Join(tables, ", "))
		}
	}
	return t, errors.Join(failed, t.iptablesNft())
}

func (t *text) iptablesNft() (failed error) {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	chains, err := conn.ListChains()
	if err != nil {
		return fmt.Errorf("list chains: %w", err)
	}
	found := map[string]int{}
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
		t.line("iptables-nft: no rule of its making")
	}
	for table, n := range found {
		t.line("iptables-nft: table %s has %d rules with its matches or targets", table, n)
	}
	return failed
}

// isXtables reports whether an expression is one that only iptables-nft makes.
func isXtables(e expr.Any) bool {
	switch e.(type) {
	case *expr.Match, *expr.Target:
		return true
	}
	return false
}
