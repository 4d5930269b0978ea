package datapath

import (
	"fmt"
	"os"
	"strings"
)

// sysctl is one kernel setting, by its path below /proc/sys with '/' between
// the parts (interface names may contain dots).
type sysctl struct {
	path, value string
}

func (s sysctl) String() string { return strings.ReplaceAll(s.path, "/", ".") + " = " + s.value }

// nodeSysctls let the node forward. accept_ra comes before forwarding: while
// it is 1, switching forwarding on throws away the default route that a router
// advertised.
func nodeSysctls(c Config, primary string) []sysctl {
	list := append([]sysctl{{"net/ipv4/ip_forward", "1"}}, eniSysctls(c, primary)...)
	if c.IPv6() {
		list = append(list, sysctl{"net/ipv6/conf/all/forwarding", "1"})
	}
	return list
}

// eniSysctls: packets of pods arrive and leave by ENIs that the main table
// would not choose. The effective rp_filter is the larger of "all" and the
// link's, so 2 (loose, RFC 3704 section 2.4) holds whatever "all" is.
func eniSysctls(c Config, link string) []sysctl {
	list := []sysctl{{"net/ipv4/conf/" + link + "/rp_filter", "2"}}
	if c.IPv6() {
		list = append(list, sysctl{"net/ipv6/conf/" + link + "/accept_ra", "2"})
	}
	return list
}

func (n *Node) setENISysctls(c Config, link string) (changed []string, err error) {
	return n.setSysctls(eniSysctls(c, link))
}

// setSysctls writes those that differ, in order, and reads each back.
func (n *Node) setSysctls(list []sysctl) (changed []string, err error) {
	err = inNetns(n.ns, func() error {
		for _, s := range list {
			did, err := s.set()
			if err != nil {
				return err
			}
			if did {
				changed = append(changed, s.String())
			}
		}
		return nil
	})
	return changed, err
}

func (s sysctl) set() (changed bool, err error) {
	file := "/proc/sys/" + s.path
	have, err := os.ReadFile(file)
	if err != nil {
		return false, fmt.Errorf("read sysctl %s: %w", s, err)
	}
	if strings.TrimSpace(string(have)) == s.value {
		return false, nil
	}
	if err := os.WriteFile(file, []byte(s.value), 0); err != nil {
		return false, fmt.Errorf("set sysctl %s (it is %s): %w", s, strings.TrimSpace(string(have)), err)
	}
	have, err = os.ReadFile(file)
	if err != nil {
		return true, fmt.Errorf("read sysctl %s back: %w", s, err)
	}
	if got := strings.TrimSpace(string(have)); got != s.value {
		return true, fmt.Errorf("sysctl %s did not stay: it is %s", s, got)
	}
	return true, nil
}
