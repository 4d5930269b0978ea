package datapath

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/berthnet/berth/internal/datapath/rtnl"
)

// procSys is where the kernel has its settings. Those of net are of the network
// namespace of the thread that looks, wherever the folder is mounted.
const procSys = "/proc/sys"

// sysctl is one kernel setting, by its path below /proc/sys with '/' between
// the parts (interface names may contain dots).
type sysctl struct {
	path, value string
	unless      string // a value that may stay
}

func (s sysctl) String() string { return strings.ReplaceAll(s.path, "/", ".") + " = " + s.value }

// nodeSysctls let the node forward. Those of the links by which packets leave come first: while their
// accept_ra is 1, switching forwarding on throws away the default route that a
// router advertised.
func nodeSysctls(u Uplinks, links []string) []sysctl {
	list := []sysctl{{path: "net/ipv4/ip_forward", value: "1"}}
	for _, l := range links {
		list = append(list, uplinkSysctls(u, l, true)...)
	}
	if u.ipv6() {
		list = append(list, sysctl{path: "net/ipv6/conf/all/forwarding", value: "1"})
	}
	return list
}

// uplinkSysctls: packets of pods arrive and leave by ENIs that the main table
// would not choose. The effective rp_filter is the larger of "all" and the
// link's, so 2 (loose, RFC 3704 section 2.4) holds whatever "all" is.
//
// Router advertisements stay in use on the primary link although it forwards,
// unless something other than the kernel reads them there (accept_ra 0, as
// systemd-networkd sets it). On a secondary ENI they would put a second default
// route into the main table.
//
// A link-local address that the kernel makes for a secondary ENI is usable at once:
// for the seconds in which it looks for a duplicate (RFC 4862 section 5.4), of which
// a VPC has none, it could not ask for the router, and IPv6 connections of the ENI's
// pods would fail. (It looks still where accept_dad of "all" is not 0.)
//
// What leaves by a secondary ENI and needs a source gets one of its own, see setUplinkAddress6.
func uplinkSysctls(u Uplinks, link string, primary bool) []sysctl {
	list := []sysctl{{path: "net/ipv4/conf/" + link + "/rp_filter", value: "2"}}
	if !u.ipv6() {
		return list
	}
	of := "net/ipv6/conf/" + link
	if primary {
		return append(list, sysctl{path: of + "/accept_ra", value: "2", unless: "0"})
	}
	return append(list, sysctl{path: of + "/accept_ra", value: "0"}, sysctl{path: of + "/accept_dad", value: "0"}, sysctl{path: of + "/use_oif_addrs_only", value: "1"})
}

// setSysctls writes those that differ below a folder, /proc/sys if empty, in
// order, and reads each back.
func (k *kernel) setSysctls(dir string, list []sysctl) (changed []string, err error) {
	err = rtnl.InNetns(k.ns, func() error {
		for _, s := range list {
			did, err := s.set(dir)
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

func (s sysctl) set(dir string) (changed bool, err error) {
	file := filepath.Join(cmp.Or(dir, procSys), s.path)
	have, err := os.ReadFile(file)
	if err != nil {
		return false, fmt.Errorf("read sysctl %s: %w", s, err)
	}
	if now := strings.TrimSpace(string(have)); now == s.value || now == s.unless {
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
