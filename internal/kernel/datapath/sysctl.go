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

// nodeSysctls let the node forward. Those of the links by which packets leave come first: while their
// accept_ra is 1, switching forwarding on throws away the default route that a
// router advertised.
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

// nodeOwner is the owner of the settings of nodeSysctls; those of an ENI are the
// ENI's, by its ID.
const nodeOwner = ""

// sysctls are the kernel's settings that this process set, by owner. Watch compares them with the kernel.
type sysctls struct {
	ns netns.NsHandle

	mu      sync.Mutex
	byOwner map[string][]rtnl.Sysctl // guarded by mu
}

func newSysctls(ns netns.NsHandle) *sysctls {
	return &sysctls{ns: ns, byOwner: map[string][]rtnl.Sysctl{}}
}

// set writes settings that differ, in order, and reads each back. They replace those that the owner had before. A
// setting may be of a link that is not Berth's, so each change is logged with the value before.
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

// forgetLink drops the settings of a link that is gone or has another name: the next link of that name may be
// somebody else's.
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

// changed describes the settings, below a folder, that other software changed. One that does not exist went with
// its link.
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

// forwarding lets a pod pass on packets between its interfaces
// (https://docs.kernel.org/networking/ip-sysctl.html, ip_forward and conf/all/forwarding).
// What another program in the pod's namespace does with these packets is its matter.
var forwarding = []rtnl.Sysctl{
	{Path: "net/ipv4/ip_forward", Value: "1"},
	{Path: "net/ipv6/conf/all/forwarding", Value: "1"},
}

// SetForwarding has the network namespace at a path forward IPv4 and, where the kernel has it,
// IPv6. Settings are below a folder, /proc/sys if empty. It is idempotent. Errors: ErrNoNetns,
// ErrNotNetns.
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

// CheckForwarding tells how the namespace differs from what SetForwarding makes of it.
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
