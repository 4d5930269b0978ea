// Package dnscache makes a node look as NodeLocal DNSCache leaves it (kubernetes/dns, cmd/node-cache/app): with a link that
// has the addresses at which the cache listens, and with iptables rules that exempt the cache's packets from connection
// tracking. The caller decides what listens there, such as an echo.Server.
package dnscache

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns"
)

// Backends are those of iptables.
var Backends = []string{"nft", "legacy"}

// What the cache listens at, of both families.
var (
	Local      = []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00:20::10")}
	ClusterIPs = []netip.Addr{netip.MustParseAddr("172.20.0.10"), netip.MustParseAddr("fd00:172:20::a")} // of kube-dns
	Addrs      = slices.Concat(Local, ClusterIPs)
)

const (
	link       = "nodelocaldns"
	healthPort = 8090
)

// Cache is the cache of one node.
type Cache struct {
	netns, backend string
	port           uint16
}

// Install gives the namespace at a path the cache's link and rules. The cache listens on a port of Addrs.
func Install(netns, backend string, port uint16) (*Cache, error) {
	c := &Cache{netns, backend, port}
	if err := ns.Netlink(netns, addLink); err != nil {
		return nil, fmt.Errorf("add link %s: %w", link, err)
	}
	return c, c.change("-A")
}

// addLink makes a veth where the kernel has no dummy links. Both are local without being set up.
func addLink(h *netlink.Handle) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = link
	if err := h.LinkAdd(&netlink.Dummy{LinkAttrs: attrs}); err != nil {
		veth := netlink.NewVeth(attrs)
		veth.PeerName = link + "1"
		if err := h.LinkAdd(veth); err != nil {
			return err
		}
	}
	l, err := h.LinkByName(link)
	if err != nil {
		return err
	}
	for _, a := range Addrs {
		if err := ns.AddAddr(h, l, netip.PrefixFrom(a, a.BitLen())); err != nil {
			return err
		}
	}
	return nil
}

// Remove removes what Install added.
func (c *Cache) Remove() error {
	return errors.Join(c.change("-D"), ns.Netlink(c.netns, func(h *netlink.Handle) error { return ns.DeleteLink(h, link) }))
}

// change adds or deletes the rules of all addresses: -A or -D.
func (c *Cache) change(op string) error {
	for _, command := range []string{"iptables", "ip6tables"} {
		raw, filter := []string{"*raw"}, []string{"*filter"}
		for _, a := range Addrs {
			if a.Is6() != (command == "ip6tables") {
				continue
			}
			to := func(chain, protocol string, port uint16) string {
				return fmt.Sprintf("%s %s -p %s -d %s --dport %d -j ", op, chain, protocol, a, port)
			}
			from := func(protocol string, port uint16) string {
				return fmt.Sprintf("%s OUTPUT -p %s -s %s --sport %d -j ", op, protocol, a, port)
			}
			for _, p := range []string{"tcp", "udp"} {
				raw = append(raw, to("PREROUTING", p, c.port)+"NOTRACK", from(p, c.port)+"NOTRACK", to("OUTPUT", p, c.port)+"NOTRACK")
				filter = append(filter, to("INPUT", p, c.port)+"ACCEPT", from(p, c.port)+"ACCEPT")
			}
			raw = append(raw, to("OUTPUT", "tcp", healthPort)+"NOTRACK", from("tcp", healthPort)+"NOTRACK")
		}
		text := strings.Join(slices.Concat(raw, []string{"COMMIT"}, filter, []string{"COMMIT", ""}), "\n")
		if _, err := c.run(text, fmt.Sprintf("%s-%s-restore", command, c.backend), "--noflush"); err != nil {
			return err
		}
	}
	return nil
}

// Tracked returns an error if some of the packets that pods and the node exchange with the cache were tracked: a rule that
// met none.
func (c *Cache) Tracked() error {
	var errs []error
	for _, command := range []string{"iptables", "ip6tables"} {
		out, err := c.run("", fmt.Sprintf("%s-%s-save", command, c.backend), "-c", "-t", "raw")
		errs = append(errs, err)
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, "[0:0] -A ") && !strings.Contains(line, fmt.Sprint("port ", healthPort)) {
				errs = append(errs, fmt.Errorf("%s: no packet met the rule %s", command, strings.TrimSpace(line)))
			}
		}
	}
	return errors.Join(errs...)
}

func (c *Cache) run(input, name string, args ...string) (out string, err error) {
	err = ns.Do(c.netns, func() error {
		cmd := exec.Command(name, args...)
		cmd.Stdin = strings.NewReader(input)
		b, err := cmd.CombinedOutput()
		if out = string(b); err != nil {
			return fmt.Errorf("%s: %w: %s\n%s", name, err, b, input)
		}
		return nil
	})
	return out, err
}
