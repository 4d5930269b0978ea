package policytable

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/nft"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/policy"
)

// inside is the input of a pod's table in addition to policies. It is nil for the node's table.
type inside struct {
	links []string
	node  netns.NsHandle
	addrs map[netip.Addr]bool // of the node, which can always reach its pods
}

// NewInside returns the table of a pod's network namespace, for interfaces whose packets do not pass the node's IP stack: ports of
// a switch, or VLANs that were moved into the pod. Apply accepts only this pod. A program in the pod with CAP_NET_ADMIN can change
// the table, and one with CAP_NET_RAW can send frames that no chain sees.
func NewInside(pod, node netns.NsHandle, links []string) *Table {
	return newTable(pod, &inside{links: links, node: node})
}

// Inside is the table of a pod with its open log.
type Inside struct {
	*Table
	Log *Log // nil if it could not be opened
}

// OpenInside opens the table of a pod; t is the table of its node. id is the ID of the pod's network namespace, which is not
// checked if zero. It returns rtnl.ErrNoNetns if there is no such namespace.
func (t *Table) OpenInside(path string, id rtnl.NetnsID, links []string) (*Inside, error) {
	node, err := rtnl.Identify(t.ns)
	if err != nil {
		return nil, err
	}
	pod, err := rtnl.OpenPodNetns(path, id, node)
	if err != nil {
		return nil, err
	}
	i := &Inside{Table: NewInside(pod, t.ns, links)}
	i.Log, _ = i.OpenLog() // an error was already reported for the node
	return i, nil
}

// Close closes the log. The table stays in force.
func (i *Inside) Close() error {
	var err error
	if i.Log != nil {
		err = i.Log.Close()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.have = nil
	i.disconnect()
	i.tracking.close(true)
	return errors.Join(err, i.ns.Close())
}

// refresh reads the node's addresses.
func (i *inside) refresh() error {
	if i == nil {
		return nil
	}
	h, err := netlink.NewHandleAt(i.node, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	i.addrs, err = addresses(h)
	return err
}

// addTo adds the sets of a pod's table.
func (i *inside) addTo(c *content) error {
	links := set{kind: nftables.Set{KeyType: nftables.TypeIFName}, elements: map[string]string{}}
	for _, name := range i.links {
		if !rtnl.ValidName(name) {
			return fmt.Errorf("%q is not a valid interface name", name)
		}
		links.elements[string(nft.LinkName(name))] = ""
	}
	c.sets[linkSet] = links
	for _, family := range families {
		node := set{kind: nftables.Set{KeyType: nft.AddressType(family)}, family: family, elements: map[string]string{}}
		for a := range i.addrs {
			if rtnl.FamilyOf(a) == family && !a.IsLoopback() && !a.IsLinkLocalUnicast() {
				node.elements[string(a.AsSlice())] = ""
			}
		}
		c.sets[familyName(nodeSet, family)] = node
	}
	return nil
}

// notJudged returns addresses whose connections the table does not judge: those of the node's own programs and, in a pod, those of
// other interfaces.
func (i *inside) notJudged(h *netlink.Handle) (func(policy.Flow) bool, error) {
	if i == nil {
		own, err := addresses(h)
		return func(f policy.Flow) bool { return own[f.Source] }, err
	}
	judged := map[netip.Addr]bool{}
	for _, name := range i.links {
		l, err := h.LinkByName(name)
		if rtnl.IsNoLink(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look up %s: %w", name, err)
		}
		list, err := rtnl.Whole(func() ([]netlink.Addr, error) { return h.AddrList(l, netlink.FAMILY_ALL) })
		if err != nil {
			return nil, fmt.Errorf("list addresses of %s: %w", name, err)
		}
		for _, a := range list {
			if addr, ok := netip.AddrFromSlice(a.IP); ok {
				judged[addr.Unmap()] = true
			}
		}
	}
	return func(f policy.Flow) bool {
		return i.addrs[f.Source] || !judged[f.Source] && !judged[f.Destination] || f.Source == f.Destination
	}, nil
}
