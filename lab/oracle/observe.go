package oracle

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/lab/network/site"
)

// kernelState is Berth's state in a node's kernel, read without Berth's code.
type kernelState struct {
	links       map[int]string        // pod links by index
	addrs       map[netip.Addr]string // link names by the node's own addresses
	routes      map[netip.Addr]int    // link indexes by address, in the pod table
	oddRoutes   []string              // of the pod table, but not host routes
	tables      map[int]bool          // device indexes of ENI tables that hold routes
	exported    map[netip.Prefix]bool // of the export table
	unreachable map[netip.Prefix]bool // routes of that type, in any table
	rules       map[string]int        // number of copies of each of Berth's rules
	ruleIndex   map[string]int        // device index of the table of an ENI rule
}

// observeKernel reads the namespace at path.
func observeKernel(path string) (kernelState, error) {
	k := kernelState{
		links: map[int]string{}, addrs: map[netip.Addr]string{}, routes: map[netip.Addr]int{}, tables: map[int]bool{},
		exported: map[netip.Prefix]bool{}, unreachable: map[netip.Prefix]bool{},
		rules: map[string]int{}, ruleIndex: map[string]int{},
	}
	err := ns.Netlink(path, k.observe)
	return k, err
}

func (k *kernelState) observe(h *netlink.Handle) error {
	links, err := again(h.LinkList)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		a := l.Attrs()
		names[a.Index] = a.Name
		if strings.HasPrefix(a.Name, datapath.LinkPrefix) {
			k.links[a.Index] = a.Name
		}
	}
	own, err := again(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range own {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			k.addrs[ip.Unmap()] = names[a.LinkIndex]
		}
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if err := k.observeRoutes(h, family); err != nil {
			return err
		}
		rules, err := again(func() ([]netlink.Rule, error) { return h.RuleList(family) })
		if err != nil {
			return fmt.Errorf("list rules: %w", err)
		}
		for _, r := range rules {
			if r.Protocol != datapath.Protocol {
				continue
			}
			name := fmt.Sprintf("%s fwmark %#x iif %q (family %d)", r, r.Mark, r.IifName, family)
			k.rules[name]++
			if i := r.Table - datapath.UplinkTableBase; r.Priority == datapath.RuleUplink {
				k.ruleIndex[name] = i
			}
		}
	}
	return nil
}

func (k *kernelState) observeRoutes(h *netlink.Handle, family int) error {
	routes, err := again(func() ([]netlink.Route, error) {
		return h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if r.Protocol != datapath.Protocol {
			continue
		}
		var dst netip.Prefix
		if r.Dst != nil {
			a, _ := netip.AddrFromSlice(r.Dst.IP)
			ones, _ := r.Dst.Mask.Size()
			dst = netip.PrefixFrom(a.Unmap(), ones)
		}
		switch i := r.Table - datapath.UplinkTableBase; {
		case r.Type == unix.RTN_UNREACHABLE:
			k.unreachable[dst] = true
		case r.Table == site.ExportTable:
			k.exported[dst] = true
		case i == 0: // datapath.PodTable
			if !dst.IsSingleIP() || r.LinkIndex == 0 {
				k.oddRoutes = append(k.oddRoutes, r.String())
				continue
			}
			k.routes[dst.Addr()] = r.LinkIndex
		case i > 0 && i <= datapath.MaxUplink:
			k.tables[i] = true
		}
	}
	return nil
}

// again repeats a listing that was interrupted by changes of the kernel's tables.
func again[T any](list func() ([]T, error)) ([]T, error) {
	for {
		out, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return out, err
		}
	}
}

// podState is a pod's interface in its network namespace.
type podState struct {
	peer  int // index of the host end
	addrs []netip.Addr
}

func observePod(path string) (p podState, err error) {
	err = ns.Netlink(path, func(h *netlink.Handle) error {
		l, err := h.LinkByName("eth0")
		if err != nil {
			return fmt.Errorf("find eth0: %w", err)
		}
		p.peer = l.Attrs().ParentIndex
		addrs, err := again(func() ([]netlink.Addr, error) { return h.AddrList(l, netlink.FAMILY_ALL) })
		if err != nil {
			return fmt.Errorf("list addresses of eth0: %w", err)
		}
		for _, a := range addrs {
			if ip, ok := netip.AddrFromSlice(a.IP); ok && (ip.Is4() || !ip.IsLinkLocalUnicast()) {
				p.addrs = append(p.addrs, ip.Unmap())
			}
		}
		return nil
	})
	return p, err
}

// records are berthd's records on disk.
type records struct {
	attachments []attachment.Record
	cooling     []attachment.Cooling
	odd         []string // unexpected files, such as damaged ones
}

func readRecords(stateDir string) (r records, err error) {
	err = filepath.WalkDir(stateDir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed during the walk
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		return r.read(path, d.Name())
	})
	return r, err
}

func (r *records) read(path, name string) error {
	isRecord, isCooling := strings.HasPrefix(name, "attachment-"), strings.HasPrefix(name, "cooling-")
	if !isRecord && !isCooling {
		return nil
	}
	if filepath.Ext(name) != ".json" {
		r.odd = append(r.odd, name)
		return nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if isRecord {
		rec, err := attachment.DecodeRecord(data)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		r.attachments = append(r.attachments, rec)
		return nil
	}
	c, err := attachment.DecodeCooling(data)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	r.cooling = append(r.cooling, c)
	return nil
}
