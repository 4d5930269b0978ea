package foreign

import (
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// mostNamespaces limits the namespaces that are searched: no node has more pods.
const mostNamespaces = 1024

// namespaces are network namespaces of other software. They are queried for single addresses, because a pod may have assigned
// any number to itself.
type namespaces []*netlink.Handle

// openNamespaces opens the namespaces of a folder that are not Berth's. It skips those that cannot be opened, because they may
// be disappearing.
func openNamespaces(dir string, ours map[datapath.NetnsID]bool) *namespaces {
	var list namespaces
	files, err := os.ReadDir(dir)
	if err != nil {
		return &list
	}
	for _, f := range files {
		if len(list) >= mostNamespaces {
			break
		}
		ns, err := rtnl.OpenNetns(filepath.Join(dir, f.Name()))
		if err != nil {
			continue
		}
		if id, err := rtnl.Identify(ns); err == nil && !ours[id] {
			if h, err := rtnl.Handle(ns); err == nil {
				list = append(list, h)
			}
		}
		_ = ns.Close()
	}
	return &list
}

func (n *namespaces) close() {
	if n == nil {
		return
	}
	for _, h := range *n {
		h.Close()
	}
}

// have reports whether one of the namespaces has an address.
func (n *namespaces) have(addr netip.Addr) bool {
	for _, h := range *n {
		routes, err := h.RouteGet(addr.AsSlice())
		for _, r := range routes {
			if err == nil && r.Type == unix.RTN_LOCAL {
				return true
			}
		}
	}
	return false
}
