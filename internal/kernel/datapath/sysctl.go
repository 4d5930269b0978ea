package datapath

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netns"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// nodeSysctls make the node forward packets. The settings of uplinks come first: with accept_ra 1, the kernel removes
// the default route that a router advertised when forwarding is turned on.
func nodeSysctls(u Uplinks, links []string) []rtnl.Sysctl {
	list := []rtnl.Sysctl{{Path: "net/ipv4/ip_forward", Value: "1"}}
	for _, l := range links {
		list = append(list, uplinkSysctls(u, l, true)...)
	}
	if u.ipv6() {
		list = append(list, rtnl.Sysctl{Path: "net/ipv6/conf/all/forwarding", Value: "1"})
	}
	return list
}

// uplinkSysctls are the settings of an uplink. Packets of pods use ENIs that the main table would not choose, so
// reverse path filtering is loose (rp_filter 2, RFC 3704 section 2.4). The kernel uses the larger of the link's
// setting and that of "all".
//
// The primary link keeps accepting router advertisements although the node forwards, unless other software than the
// kernel handles them (accept_ra 0, as systemd-networkd sets it). On a secondary ENI they would add a second default
// route to the main table.
//
// accept_dad 0 makes the kernel's link-local address of a secondary ENI usable immediately. During duplicate address
// detection (RFC 4862 section 5.4), which takes seconds, the node could not solicit the router, and IPv6 connections
// of the ENI's pods would fail. A VPC has no duplicates. (The kernel still detects duplicates if accept_dad of "all"
// is not 0.)
//
// use_oif_addrs_only: see linkAddress6.
func uplinkSysctls(u Uplinks, link string, primary bool) []rtnl.Sysctl {
	list := []rtnl.Sysctl{{Path: "net/ipv4/conf/" + link + "/rp_filter", Value: "2"}}
	if !u.ipv6() {
		return list
	}
	of := "net/ipv6/conf/" + link
	if primary {
		return append(list, rtnl.Sysctl{Path: of + "/accept_ra", Value: "2", Unless: "0"})
	}
	return append(list, rtnl.Sysctl{Path: of + "/accept_ra", Value: "0"}, rtnl.Sysctl{Path: of + "/accept_dad", Value: "0"}, rtnl.Sysctl{Path: of + "/use_oif_addrs_only", Value: "1"})
}

// nodeOwner is the owner of nodeSysctls. The owner of an ENI's settings is its ID.
const nodeOwner = ""

// sysctls are the settings that this process made, by owner. Watch compares them with the kernel.
type sysctls struct {
	ns netns.NsHandle

	mu      sync.Mutex
	byOwner map[string][]rtnl.Sysctl // guarded by mu
}

func newSysctls(ns netns.NsHandle) *sysctls {
	return &sysctls{ns: ns, byOwner: map[string][]rtnl.Sysctl{}}
}

// set writes the settings that differ, in order, and verifies each. They replace the owner's earlier ones. It logs
// each change with the previous value, as the link may not be Berth's.
func (t *sysctls) set(c Config, owner string, list []rtnl.Sysctl) (changed []string, err error) {
	t.mu.Lock()
	t.byOwner[owner] = list
	t.mu.Unlock()
	log := cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	err = rtnl.InNetns(t.ns, func() error {
		for _, s := range list {
			before, right, err := s.Look(c.Sysctls)
			if err != nil {
				return err
			}
			if right {
				continue
			}
			if _, err := s.Set(c.Sysctls); err != nil {
				return err
			}
			log.Info("changed a sysctl of the node", "sysctl", s.String(), "before", before)
			changed = append(changed, s.String())
		}
		return nil
	})
	return changed, err
}

// forgetLink drops the settings of a removed or renamed link: the next link with the name may not be Berth's.
func (t *sysctls) forgetLink(link string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for owner, list := range t.byOwner {
		t.byOwner[owner] = slices.DeleteFunc(slices.Clone(list), func(s rtnl.Sysctl) bool { return strings.Contains(s.Path, "/conf/"+link+"/") })
	}
}

// forgetOwner drops the settings of an owner.
func (t *sysctls) forgetOwner(owner string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byOwner, owner)
}

// changed describes settings of Berth that other software changed. It ignores those of removed links.
func (t *sysctls) changed(dir string) (changed []string) {
	t.mu.Lock()
	list := slices.Concat(slices.Collect(maps.Values(t.byOwner))...)
	t.mu.Unlock()
	_ = rtnl.InNetns(t.ns, func() error {
		for _, want := range list {
			if now, right, err := want.Look(dir); err == nil && !right {
				changed = append(changed, "sysctl "+want.String()+" is now "+now)
			}
		}
		return nil
	})
	return changed
}

// forwarding lets a pod forward packets between its interfaces (https://docs.kernel.org/networking/ip-sysctl.html,
// ip_forward and conf/all/forwarding).
var forwarding = []rtnl.Sysctl{
	{Path: "net/ipv4/ip_forward", Value: "1"},
	{Path: "net/ipv6/conf/all/forwarding", Value: "1"},
}

// SetForwarding makes the network namespace at a path forward IPv4 and, if the kernel has it, IPv6. Settings are
// below a folder, /proc/sys if empty. It is idempotent. Errors: ErrNoNetns, ErrNotNetns.
func SetForwarding(netnsPath, sysctls string) error {
	return inNetnsAt(netnsPath, func() error {
		for _, s := range forwarding {
			if _, err := s.Set(sysctls); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		return nil
	})
}

// CheckForwarding returns an error if the namespace does not forward as after SetForwarding.
func CheckForwarding(netnsPath string) error {
	return inNetnsAt(netnsPath, func() error {
		for _, s := range forwarding {
			switch now, right, err := s.Look(""); {
			case errors.Is(err, os.ErrNotExist):
			case err != nil:
				return err
			case !right:
				return fmt.Errorf("sysctl %s is %s", s, now)
			}
		}
		return nil
	})
}

func inNetnsAt(path string, do func() error) error {
	ns, err := rtnl.OpenNetns(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	return rtnl.InNetns(ns, do)
}
