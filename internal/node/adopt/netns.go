package adopt

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/node/attachment"
)

// Namespaces finds network namespaces by the links that lead to them.
type Namespaces struct{ byID map[int]attachment.Netns }

// FindNamespaces lists the network namespaces of the machine that have a path: those below folders, such as
// /run/netns, where container runtimes keep them, and those of processes below proc. host is a socket in the node's
// namespace.
func FindNamespaces(host *netlink.Handle, folders []string, proc string) (Namespaces, error) {
	var paths []string
	for _, f := range folders {
		found, err := filepath.Glob(filepath.Join(f, "*"))
		if err != nil {
			return Namespaces{}, fmt.Errorf("list %s: %w", f, err)
		}
		paths = append(paths, found...)
	}
	entries, err := os.ReadDir(proc)
	if err != nil {
		return Namespaces{}, fmt.Errorf("list processes: %w", err)
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			paths = append(paths, filepath.Join(proc, e.Name(), "ns", "net"))
		}
	}
	found := Namespaces{byID: map[int]attachment.Netns{}}
	var seen []rtnl.NetnsID
	for _, path := range paths {
		ns, err := rtnl.OpenNetns(path)
		if err != nil { // the process or the namespace ended, or it is another file
			continue
		}
		id, err := rtnl.Identify(ns)
		if err == nil && !slices.Contains(seen, id) {
			seen = append(seen, id)
			var number int
			if number, err = host.GetNetNsIdByFd(int(ns)); err == nil && number >= 0 {
				found.byID[number] = attachment.Netns{Path: path, Dev: id.Dev, Inode: id.Inode}
			}
		}
		_ = ns.Close()
		if err != nil {
			return Namespaces{}, fmt.Errorf("%s: %w", path, err)
		}
	}
	return found, nil
}

// Behind returns the namespace of a veth's other end.
func (n Namespaces) Behind(link netlink.Link) (attachment.Netns, bool) {
	ns, ok := n.byID[link.Attrs().NetNsID]
	return ns, ok && link.Type() == "veth"
}
