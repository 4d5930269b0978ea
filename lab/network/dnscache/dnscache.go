// Package dnscache configures a node like NodeLocal DNSCache (kubernetes/dns, cmd/node-cache/app): with a link that has the
// addresses of the cache, and with iptables rules that exempt the cache's packets from connection tracking. The caller
// provides the server on these addresses, such as an echo.Server.
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

// Backends of iptables.
var Backends = []string{"nft", "legacy"}

// Addresses of the cache, of both families.
var (
	Local      = []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00:20::10")}
	ClusterIPs = []netip.Addr{netip.MustParseAddr("172.20.0.10"), netip.MustParseAddr("fd00:172:20::a")} // address of kube-dns
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

// Install adds the cache's link and rules to the network namespace at a path. The cache listens on a port of Addrs.
func Install(netns, backend string, port uint16) (*Cache, error) {
	c := &Cache{netns, backend, port}
	if err := ns.Netlink(netns, addLink); err != nil {
		return nil, fmt.Errorf("add link %s: %w", link, err)
	}
	return c, c.change("-A")
}

// addLink creates a dummy link, or a veth on kernels without dummy links. The addresses of either are local even while it
// is down.
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

// Remove removes everything that Install added.
func (c *Cache) Remove() error {
	return errors.Join(c.change("-D"), ns.Netlink(c.netns, func(h *netlink.Handle) error { return ns.DeleteLink(h, link) }))
}

// change adds (-A) or deletes (-D) the rules of all addresses.
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

// Tracked returns an error if packets between the cache and pods or the node were tracked, which means that some rule
// matched no packet.
func (c *Cache) Tracked() error {
	var errs []error
	for _, command := range []string{"iptables", "ip6tables"} {
		out, err := c.run("", fmt.Sprintf("%s-%s-save", command, c.backend), "-c", "-t", "raw")
		errs = append(errs, err)
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, "[0:0] -A ") && !strings.Contains(line, fmt.Sprint("port ", healthPort)) {
				errs = append(errs, fmt.Errorf("%s: rule %s matched no packet", command, strings.TrimSpace(line)))
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
