package coil

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/migrate/plugins"
	"github.com/berthnet/berth/internal/node/foreign"
)

// removeTables removes Coil's routes of its tables. Those of pods went with the pods.
func (l *hostLinks) removeTables() (changed []string, err error) {
	for _, family := range families {
		for _, table := range []int{foreign.CoilPodTable, foreign.CoilExportTable} {
			routes, err := rtnl.Whole(func() ([]netlink.Route, error) {
				return l.host.RouteListFiltered(family, &netlink.Route{Table: table, Protocol: foreign.CoilProtocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
			})
			if err != nil {
				return changed, fmt.Errorf("list the routes of table %d: %w", table, err)
			}
			for _, r := range routes {
				if err := l.host.RouteDel(&r); err != nil && !rtnl.IsGone(err) {
					return changed, fmt.Errorf("remove the route %s of table %d: %w", rtnl.RouteDst(r), table, err)
				}
				changed = append(changed, fmt.Sprintf("removed route %s of table %d", rtnl.RouteDst(r), table))
			}
		}
	}
	return changed, nil
}

// removeFiles removes Coil's files. A configuration in which Coil is chained stays, since it is another network's too.
func (n *Node) removeFiles(s state) (changed []string, err error) {
	var files []string
	if at, ok := n.cfg.CoilAddress.(*net.UnixAddr); ok {
		files = append(files, at.Name)
	}
	if s.conf != "" && !s.chained {
		files = append(files, s.conf)
	}
	for _, f := range files {
		err := os.Remove(f)
		if errors.Is(err, fs.ErrNotExist) || f == "" {
			continue
		}
		if err != nil {
			return changed, err
		}
		changed = append(changed, "removed "+f)
	}
	return changed, nil
}

// removePlugin removes Coil's plugin, unless something uses it.
func (c Config) removePlugin(r *migrate.Report) error {
	f := plugins.Folders{Bin: filepath.Dir(c.Plugin), Conf: c.ConfFolder}
	if c.EndsByResult && len(c.ResultFolders) > 0 {
		f.Results = c.ResultFolders[0]
	}
	removed, kept, err := f.Remove("github.com/cybozu-go/coil", filepath.Base(c.Plugin))
	r.Changed, r.Kept = append(r.Changed, removed...), kept
	return err
}

// removeUnreachable removes Berth's unreachable routes to the node's blocks. Its table is looked up before Coil's, so they
// would hide Coil's routes to pods. berthd sets them again.
func (l *hostLinks) removeUnreachable() error {
	for _, family := range families {
		routes, err := rtnl.Whole(func() ([]netlink.Route, error) {
			return l.host.RouteListFiltered(family, &netlink.Route{Table: datapath.PodTable, Protocol: datapath.Protocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
		})
		if err != nil {
			return fmt.Errorf("list the routes of table %d: %w", datapath.PodTable, err)
		}
		for _, r := range routes {
			if r.Type != unix.RTN_UNREACHABLE {
				continue
			}
			if err := l.host.RouteDel(&r); err != nil && !rtnl.IsGone(err) {
				return fmt.Errorf("remove the unreachable route %s of table %d: %w", rtnl.RouteDst(r), r.Table, err)
			}
		}
	}
	return nil
}
