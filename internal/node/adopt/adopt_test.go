package adopt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/ns/nstest"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon"
)

const formerLink = "eni5c7bc6c9b47"

var podAddr = netip.MustParseAddr("10.0.1.9")

// scene is a node with one pod of another network, which has Berth's data path but no pod of Berth's.
type scene struct {
	t         *testing.T
	node, pod string // paths of namespaces
	host, in  *netlink.Handle
	data      *datapath.Node
	dir       string // of records
}

func newScene(t *testing.T) *scene {
	s := &scene{t: t, node: nstest.New(t, nstest.Unique("node")), pod: nstest.New(t, nstest.Unique("pod")), dir: t.TempDir()}
	handle := func(path string) *netlink.Handle {
		h, err := rtnl.OpenNetns(path)
		s.ok(err)
		defer func() { _ = h.Close() }()
		nl, err := rtnl.Handle(h)
		s.ok(err)
		t.Cleanup(nl.Close)
		s.ok(nl.LinkSetUp(rtnl.LinkRef(1)))
		return nl
	}
	s.host, s.in = handle(s.node), handle(s.pod)
	primary := net.HardwareAddr{2, 0, 0, 0, 0, 5}
	s.veth(s.host, "ens5", primary, "to-ens5", netns.None())
	inPod, err := rtnl.OpenNetns(s.pod)
	s.ok(err)
	t.Cleanup(func() { _ = inPod.Close() })
	s.veth(s.host, formerLink, net.HardwareAddr{2, 0, 0, 0, 0, 6}, "eth0", inPod)
	s.formerPod()
	s.data, err = datapath.Open(s.node)
	s.ok(err)
	t.Cleanup(func() { _ = s.data.Close() })
	s.ok(s.data.Setup(t.Context(), datapath.Config{Uplinks: datapath.VPC{
		PrimaryMAC: primary, PrimaryIPv4: netip.MustParseAddr("10.0.0.4"), LocalCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")},
	}}))
	return s
}

func (s *scene) ok(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// veth creates a link; the other end is in a namespace, or beside it.
func (s *scene) veth(h *netlink.Handle, name string, mac net.HardwareAddr, peer string, in netns.NsHandle) {
	a := netlink.NewLinkAttrs()
	a.Name, a.HardwareAddr, a.MTU = name, mac, 9001
	v := netlink.NewVeth(a)
	v.PeerName, v.PeerMTU = peer, 9001
	if in.IsOpen() {
		v.PeerNamespace = netlink.NsFd(in)
	}
	s.ok(h.LinkAdd(v))
	s.ok(h.LinkSetUp(v))
}

// formerPod sets up the pod as the plugin of the Amazon VPC CNI does, for an address of a secondary ENI.
func (s *scene) formerPod() {
	eth0, err := s.in.LinkByName("eth0")
	s.ok(err)
	s.ok(s.in.LinkSetUp(eth0))
	index, gateway := eth0.Attrs().Index, netip.MustParseAddr("169.254.1.1")
	s.ok(s.in.RouteAdd(&netlink.Route{LinkIndex: index, Scope: netlink.SCOPE_LINK, Dst: rtnl.IPNet(rtnl.HostPrefix(gateway))}))
	s.ok(s.in.RouteAdd(&netlink.Route{LinkIndex: index, Dst: rtnl.IPNet(netip.MustParsePrefix("0.0.0.0/0")), Gw: gateway.AsSlice()}))
	s.ok(s.in.AddrAdd(eth0, &netlink.Addr{IPNet: rtnl.IPNet(rtnl.HostPrefix(podAddr))}))
	host, err := s.host.LinkByName(formerLink)
	s.ok(err)
	s.ok(s.in.NeighAdd(rtnl.PermanentNeighbour(index, gateway, host.Attrs().HardwareAddr)))
	s.ok(s.host.RouteReplace(&netlink.Route{LinkIndex: host.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: rtnl.IPNet(rtnl.HostPrefix(podAddr)), Table: unix.RT_TABLE_MAIN}))
	for _, r := range []attachment.AdoptedRule{
		{Priority: 512, To: rtnl.HostPrefix(podAddr), Table: unix.RT_TABLE_MAIN}, {Priority: 1536, From: rtnl.HostPrefix(podAddr), Table: 2},
	} {
		s.ok(s.host.RuleAdd(RuleOf(r)))
	}
}

// adopter opens the records again, as another process does.
func (s *scene) adopter() *Adopter {
	store, bad, err := attachment.Open(s.dir, attachment.Node{InstanceID: "i-1", BootID: "boot-1"}, slog.New(slog.DiscardHandler))
	s.ok(err)
	if len(bad) > 0 {
		s.t.Fatalf("damaged records: %+v", bad)
	}
	a, err := New(store, s.data, s.node, time.Now, slog.New(slog.DiscardHandler))
	s.ok(err)
	s.t.Cleanup(func() { _ = a.Close() })
	return a
}

func (s *scene) formerly() Pod {
	found, err := FindNamespaces(s.host, []string{"/run/netns"}, "/proc")
	s.ok(err)
	link, err := s.host.LinkByName(formerLink)
	if rtnl.IsNoLink(err) {
		link, err = s.host.LinkByName(datapath.HostLinkName("aws-cni", "c1", "eth0"))
	}
	s.ok(err)
	ns, ok := found.Behind(link)
	if !ok || ns.Path != s.pod {
		s.t.Fatalf("namespace behind the link = %+v, %v, want %s", ns, ok, s.pod)
	}
	return Pod{
		Key: attachment.Key{Network: "aws-cni", ContainerID: "c1", IfName: "eth0"}, Pod: attachment.Pod{Namespace: "shop", Name: "web"},
		Lease: attachment.Lease{IPv4: podAddr, Uplink: 1}, Netns: ns, Former: attachment.Adopted{From: "amazon-vpc-cni", HostLink: formerLink},
	}
}

// state describes links, rules and routes of the node, and the pod's neighbours.
func (s *scene) state() string {
	var b strings.Builder
	links, err := s.host.LinkList()
	s.ok(err)
	for _, l := range links {
		a := l.Attrs()
		fmt.Fprintf(&b, "link %d %s group %d up %v mac %s\n", a.Index, a.Name, a.Group, a.Flags&net.FlagUp != 0, a.HardwareAddr)
	}
	rules, err := s.host.RuleList(unix.AF_INET)
	s.ok(err)
	var lines []string // sorted: the order among rules of one priority does not matter
	for _, r := range rules {
		lines = append(lines, fmt.Sprintf("%s protocol %d\n", rtnl.RuleOf(r), r.Protocol))
	}
	routes, err := s.host.RouteListFiltered(unix.AF_INET, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	s.ok(err)
	for _, r := range routes {
		lines = append(lines, fmt.Sprintf("route %s link %d table %d protocol %d\n", rtnl.RouteDst(r), r.LinkIndex, r.Table, r.Protocol))
	}
	slices.Sort(lines)
	b.WriteString(strings.Join(lines, ""))
	neighbours, err := rtnl.PermanentNeighbours(s.host, 0, unix.AF_INET)
	s.ok(err)
	for _, n := range neighbours {
		fmt.Fprintf(&b, "neighbour %s link %d\n", n.IP, n.LinkIndex)
	}
	return b.String()
}

// adopted checks that the pod is Berth's only.
func (s *scene) adopted(a *Adopter, when string) attachment.Record {
	s.t.Helper()
	rec, ok := a.store.Get(attachment.Key{Network: "aws-cni", ContainerID: "c1", IfName: "eth0"})
	if !ok || rec.State != attachment.Ready || rec.FormerLink() != formerLink {
		s.t.Fatalf("%s: record = %+v, %v", when, rec, ok)
	}
	if err := s.data.CheckPod(context.Background(), daemon.PodOf(rec)); err != nil {
		s.t.Errorf("%s: %v", when, err)
	}
	for _, not := range []string{formerLink, "rule 512 to ", "rule 1536 from ", "route 10.0.1.9/32 link 4 table 254"} {
		if strings.Contains(s.state(), not) {
			s.t.Errorf("%s: the node still has %q:\n%s", when, not, s.state())
		}
	}
	return rec
}

// TestAdoptedAndGivenBack takes a pod over and gives it back: the node is as before. Both work again after a failure at each
// step, in another process.
func TestAdoptedAndGivenBack(t *testing.T) {
	s := newScene(t)
	before := s.state()
	for _, point := range []string{"", "adopt.record.after", "adopt.link.after", "adopt.rules.after", "adopt.routes.after"} {
		for _, back := range []string{"", "giveback.record.after", "giveback.routes.after", "giveback.rules.after", "giveback.rename.after", "giveback.clean.after"} {
			if point != "" && back != "" {
				continue
			}
			when := "at " + point + back
			s.failing(point, func() error { _, err := s.adopter().TakeOver(t.Context(), s.formerly()); return err })
			a := s.adopter()
			_, err := a.TakeOver(t.Context(), s.formerly())
			s.ok(err)
			rec := s.adopted(a, when)
			if changed, err := s.adopter().TakeOver(t.Context(), s.formerly()); changed || err != nil {
				t.Errorf("%s: a second call changed %v, %v", when, changed, err)
			}
			s.failing(back, func() error { return s.adopter().GiveBack(t.Context(), rec, attachment.Adopted{}, nil) })
			if a = s.adopter(); back != "" {
				if rec, ok := a.store.Get(rec.Key); ok {
					s.ok(a.GiveBack(t.Context(), rec, attachment.Adopted{}, nil))
				}
			}
			if after := s.state(); after != before {
				t.Fatalf("%s: the node is\n%s\nbefore it was\n%s", when, after, before)
			}
			if n := len(s.adopter().store.Records()); n > 0 {
				t.Errorf("%s: %d records are left", when, n)
			}
		}
	}
}

// failing calls a step that fails at a failpoint; empty: nothing happens, but for the last call of a step without failpoint.
func (s *scene) failing(point string, step func() error) {
	s.t.Helper()
	if point != "" {
		restore, err := failpoint.Set(point + "=error")
		s.ok(err)
		defer restore()
	}
	if err := step(); point == "" && err != nil || point != "" && !errors.Is(err, failpoint.ErrHit) {
		s.t.Fatalf("step with failpoint %q: %v", point, err)
	}
}

// A pod that ended while it was Berth's is forgotten.
func TestGivingBackAGonePod(t *testing.T) {
	s := newScene(t)
	a := s.adopter()
	_, err := a.TakeOver(t.Context(), s.formerly())
	s.ok(err)
	rec := s.adopted(a, "adopted")
	link, err := s.host.LinkByName(rec.HostLink)
	s.ok(err)
	s.ok(s.host.LinkDel(link))
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = rec.Adopted.HostLink, net.HardwareAddr{2, 0, 0, 0, 0, 9}
	later := netlink.NewVeth(attrs) // of a later pod of the same name
	later.PeerName = "later"
	s.ok(s.host.LinkAdd(later))
	s.ok(s.host.LinkSetUp(later))
	s.ok(a.GiveBack(t.Context(), rec, attachment.Adopted{}, nil))
	if n := len(a.store.Records()); n > 0 {
		t.Errorf("%d records are left", n)
	}
	routes, err := s.host.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{LinkIndex: later.Index, Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	s.ok(err)
	if link, err := s.host.LinkByName(later.Name); err != nil || link.Attrs().Alias != "" || len(routes) > 0 {
		t.Errorf("the link of a later pod was changed: %+v, routes %v, error %v", link, routes, err)
	}
}
