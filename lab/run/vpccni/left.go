package vpccni

import (
	"fmt"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// secondTable is below the first number of Berth's routing tables, and above those of secondary ENIs.
const secondTable = 100

// Left describes what the Amazon VPC CNI left in a node's network namespace: links, rules, routes and chains. Berth's rules
// and routes have its protocol number, and the kernel's own have other ones.
func Left(netns string) (left []string, err error) {
	err = ns.Do(netns, func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		pods := map[int]bool{}
		for _, l := range links {
			if name := l.Attrs().Name; l.Type() == "veth" && strings.HasPrefix(name, "eni") {
				left = append(left, "link "+name)
			} else if strings.HasPrefix(name, datapath.LinkPrefix) {
				pods[l.Attrs().Index] = true
			}
		}
		rules, err := netlink.RuleList(netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		for _, r := range rules {
			if r.Protocol != datapath.Protocol && r.Protocol != unix.RTPROT_KERNEL {
				left = append(left, r.String())
			}
		}
		routes, err := rtnl.Whole(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return err
		}
		for _, r := range routes {
			if r.Table == unix.RT_TABLE_MAIN && pods[r.LinkIndex] && r.Protocol != unix.RTPROT_KERNEL || r.Table > 0 && r.Table < secondTable {
				left = append(left, r.String())
			}
		}
		chains, err := leftChains()
		left = append(left, chains...)
		return err
	})
	return left, err
}

// leftChains describes the chains of the Amazon VPC CNI in the calling thread's namespace, and jumps to them.
func leftChains() (left []string, err error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	chains, err := conn.ListChains()
	if err != nil {
		return nil, err
	}
	for _, c := range chains {
		if strings.HasPrefix(c.Name, "AWS") || c.Table.Name == "aws-cni" {
			left = append(left, fmt.Sprintf("chain %s of table %s", c.Name, c.Table.Name))
		}
	}
	return left, nil
}
