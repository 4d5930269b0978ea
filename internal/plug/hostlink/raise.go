package hostlink

import (
	"errors"
	"fmt"
	"os"

	"github.com/berthnet/berth/internal/datapath/rtnl"
)

// Raise sets links up. The node itself has no part in what they carry: it takes no IPv6
// address on them.
func (n *Node) Raise(links ...Link) error {
	for _, l := range links {
		err := rtnl.InNetns(n.NS, func() error {
			return os.WriteFile("/proc/sys/net/ipv6/conf/"+l.Name+"/disable_ipv6", []byte("1"), 0)
		})
		if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
			return fmt.Errorf("switch IPv6 off on %s: %w", l.Name, err)
		}
		if err := n.NL.LinkSetUp(rtnl.LinkRef(l.Index)); err != nil {
			return fmt.Errorf("set %s up: %w", l.Name, err)
		}
	}
	return nil
}
