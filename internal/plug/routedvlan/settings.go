package routedvlan

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berthnet/berth/internal/datapath/rtnl"
	"github.com/berthnet/berth/internal/plug"
)

// setting is one of the kernel's, by its path below /proc/sys.
type setting struct{ path, value string }

// settings are those of a branch (https://docs.kernel.org/networking/ip-sysctl.html).
//
// Packets come by links that the main table would not choose: rp_filter 2 is loose, whatever that of "all" is.
// In mode strict what the node itself sends to the pod comes back by the VLAN with the node's own
// source (accept_local). And what the pod answers to the node must not be given to the node's sockets when
// it comes from the pod, as it is on its way to the VLAN: the kernel drops what has found a socket and is to be
// forwarded (tcp_early_demux, udp_early_demux).
func (b branch) settings() []setting {
	list := []setting{
		{"net/ipv4/conf/" + b.pod + "/rp_filter", "2"}, {"net/ipv4/conf/" + b.vlan + "/rp_filter", "2"},
	}
	if b.enforcing == plug.Strict {
		list = append(list, setting{"net/ipv4/conf/" + b.vlan + "/accept_local", "1"},
			setting{"net/ipv4/tcp_early_demux", "0"}, setting{"net/ipv4/udp_early_demux", "0"})
	}
	return list
}

// set writes the settings of a branch whose links are there.
func (p *Plugger) set(b branch) error {
	return rtnl.InNetns(p.node.NS, func() error {
		for _, s := range b.settings() {
			if err := os.WriteFile(filepath.Join(cmp.Or(p.node.Sysctls, "/proc/sys"), s.path), []byte(s.value), 0); err != nil {
				return fmt.Errorf("set %s to %s: %w", s.path, s.value, err)
			}
		}
		return nil
	})
}
