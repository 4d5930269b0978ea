package routedvlan

import (
	"errors"
	"os"

	"github.com/berthnet/berth/internal/datapath/rtnl"
	"github.com/berthnet/berth/internal/plug"
)

// settings are those of a branch (https://docs.kernel.org/networking/ip-sysctl.html).
//
// In mode strict the rules by which the kernel finds where a source is (rp_filter) are those of the packet's mark
// (src_valid_mark). And what a pod answers to the node's own sockets is on its way to the VLAN when it comes
// from the pod, and must not be given to them there: the kernel drops what has found a socket and is
// to be forwarded (tcp_early_demux, udp_early_demux).
func (b branch) settings() []rtnl.Sysctl {
	if b.enforcing != plug.Strict {
		return nil
	}
	return []rtnl.Sysctl{
		{Path: "net/ipv4/conf/" + b.pod + "/src_valid_mark", Value: "1"}, {Path: "net/ipv4/conf/" + b.vlan + "/src_valid_mark", Value: "1"},
		{Path: "net/ipv4/tcp_early_demux", Value: "0"}, {Path: "net/ipv4/udp_early_demux", Value: "0"},
	}
}

// set writes the settings of a branch whose links are there.
func (p *Plugger) set(b branch) error {
	return rtnl.InNetns(p.node.NS, func() error {
		for _, s := range b.settings() {
			if _, err := s.Set(p.node.Sysctls); err != nil {
				return err
			}
		}
		return nil
	})
}

// checkSettings finds settings that somebody has changed.
func (p *Plugger) checkSettings(b branch, found *plug.Differences) error {
	return rtnl.InNetns(p.node.NS, func() error {
		for _, s := range b.settings() {
			now, right, err := s.Look(p.node.Sysctls)
			switch {
			case errors.Is(err, os.ErrNotExist): // with its link, which is found to be missing itself
			case err != nil:
				return err
			case !right:
				found.Add("sysctl %s is %s", s, now)
			}
		}
		return nil
	})
}
