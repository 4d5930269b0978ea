package plugtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Veth creates a veth with both ends in a namespace.
func Veth(s *podif.Namespace, name, peer string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	v := netlink.NewVeth(attrs)
	v.PeerName = peer
	return s.NL.LinkAdd(v)
}

// Describe lists the links of a namespace, one on each line, without properties that change by
// themselves.
func Describe(t testing.TB, s *podif.Namespace) string {
	t.Helper()
	list, err := rtnl.Whole(s.NL.LinkList)
	Must(t, err)
	var lines []string
	for _, l := range list {
		a := l.Attrs()
		lines = append(lines, fmt.Sprintf("%s %s group %d master %d alias %q", a.Name, l.Type(), a.Group, a.MasterIndex, a.Alias))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
