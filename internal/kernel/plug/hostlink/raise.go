package hostlink

import (
	"errors"
	"fmt"
	"os"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Raise turns IPv6 off on links, so that the node takes no address there, and sets them up.
func (n *Node) Raise(links ...Link) error {
	for _, l := range links {
		err := rtnl.SetIPv6(n.NS, n.Sysctls, l.Name, "disable_ipv6", "1")
		if err != nil && !errors.Is(err, os.ErrNotExist) { // the kernel has no IPv6
			return fmt.Errorf("switch IPv6 off on %s: %w", l.Name, err)
		}
		if err := n.NL.LinkSetUp(rtnl.LinkRef(l.Index)); err != nil {
			return fmt.Errorf("set %s up: %w", l.Name, err)
		}
	}
	return nil
}
