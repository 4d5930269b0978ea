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
// In mode strict the rules by which the kernel finds where a source is (rp_filter) are those of the packet's mark
// (src_valid_mark). And what a pod answers to the node's own sockets is on its way to the VLAN when it comes
// from the pod, and must not be given to them there: the kernel drops what has found a socket and is
// to be forwarded (tcp_early_demux, udp_early_demux).
func (b branch) settings() []setting {
	if b.enforcing != plug.Strict {
		return nil
	}
	return []setting{
		{"net/ipv4/conf/" + b.pod + "/src_valid_mark", "1"}, {"net/ipv4/conf/" + b.vlan + "/src_valid_mark", "1"},
		{"net/ipv4/tcp_early_demux", "0"}, {"net/ipv4/udp_early_demux", "0"},
	}
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
