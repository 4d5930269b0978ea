package hostlink

import (
	"errors"
	"fmt"
	"os"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Raise sets links up. The node itself has no part in what they carry: it takes no IPv6
// address on them.
func (n *Node) Raise(links ...Link) error {
	for _, l := range links {
		err := rtnl.SetIPv6(n.NS, n.Sysctls, l.Name, "disable_ipv6", "1")
		if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
			return fmt.Errorf("switch IPv6 off on %s: %w", l.Name, err)
		}
		if err := n.NL.LinkSetUp(rtnl.LinkRef(l.Index)); err != nil {
			return fmt.Errorf("set %s up: %w", l.Name, err)
		}
	}
	return nil
}
