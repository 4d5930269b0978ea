package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/cnierror"
	"github.com/berthnet/berth/internal/node/daemon/part"
	"github.com/berthnet/berth/internal/node/uplinks"
	"github.com/berthnet/berth/internal/source/sourcefake"
)

var spaceSeq atomic.Int32

// newSpace creates a network namespace btd-* and returns its path and a handle.
func newSpace(t testing.TB) (path string, h *netlink.Handle) {
	t.Helper()
	name := fmt.Sprintf("btd-%d-%d", os.Getpid(), spaceSeq.Add(1))
	if err := ns.Create(name); err != nil {
		t.Fatalf("this test creates network namespaces and needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := ns.Remove(name); err != nil {
			t.Error(err)
		}
	})
	err := ns.Do(ns.Path(name), func() (err error) {
		h, err = netlink.NewHandle()
		return err
	})
	must(t, err)
	t.Cleanup(h.Close)
	return ns.Path(name), h
}

// addVeth creates a veth pair with both ends in h's namespace.
func addVeth(t testing.TB, h *netlink.Handle, attrs netlink.LinkAttrs, peer string) {
	t.Helper()
	v := netlink.NewVeth(attrs)
	v.PeerName, v.PeerMTU = peer, uint32(attrs.MTU)
	must(t, h.LinkAdd(v))
}

// machine is a node with a real kernel: a namespace with a primary link.
type machine struct {
	t     testing.TB
	dir   string
	path  string
	net   *netlink.Handle
	vpc   datapath.VPC
	addrs []netip.Addr
	parts func(*attachment.Store, *Metrics) []part.Part // may be nil
	// foreign observes other software; may be nil.
	foreign Foreign
}

func newMachine(t testing.TB, pods int) *machine {
	t.Helper()
	m := &machine{t: t, dir: t.TempDir()}
	m.path, m.net = newSpace(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = "ens5", 9001, net.HardwareAddr{2, 0, 0, 0, 0, 5}
	addVeth(t, m.net, attrs, "router")
	for _, name := range []string{"lo", "ens5", "router"} {
		l, err := m.net.LinkByName(name)
		if err == nil {
			err = m.net.LinkSetUp(l)
		}
		must(t, err)
	}
	m.vpc = datapath.VPC{
		PrimaryMAC: attrs.HardwareAddr, PrimaryIPv4: netip.MustParseAddr("10.0.0.4"),
		LocalCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")},
	}
	a := netip.MustParseAddr("10.0.1.1")
	for range pods {
		m.addrs = append(m.addrs, a)
		a = a.Next()
	}
	return m
}

// open opens the data path and closes it when the test ends.
func (m *machine) open() *datapath.Node {
	m.t.Helper()
	node, err := datapath.Open(m.path)
	must(m.t, err)
	m.t.Cleanup(func() { _ = node.Close() })
	return node
}

// started is a daemon running on a machine.
type started struct {
	*Daemon
	net    *uplinks.VPC
	source *sourcefake.Source
	stop   func()
}

func (m *machine) start(period time.Duration) *started {
	m.t.Helper()
	log := slog.New(slog.DiscardHandler)
	boot, err := BootID()
	must(m.t, err)
	store, bad, err := attachment.Open(filepath.Join(m.dir, "attachments"), attachment.Node{InstanceID: "i-1", BootID: boot}, log)
	must(m.t, err)
	network := uplinks.NewVPC(m.open())
	must(m.t, network.Setup(context.Background(), datapath.Config{}, m.vpc))
	src := sourcefake.New(clock.Real{}, period, m.addrs...)
	metrics := NewMetrics()
	var parts []part.Part
	if m.parts != nil {
		parts = m.parts(store, metrics)
	}
	d := New(Options{
		Source: src, Kernel: network, Parts: parts, Repair: Repair{Upkeep: network, Foreign: m.foreign}, Store: store, Quarantined: bad, Metrics: metrics,
		Clock: clock.Real{}, Log: log, Node: Node{StateDir: m.dir},
		Times: Times{WarmWait: time.Minute, DrainTimeout: time.Minute, NetnsGrace: time.Minute, RepairInterval: time.Minute},
	})
	front, end := run(m.t, d, filepath.Join(m.dir, "berthd.sock"))
	s := &started{Daemon: d, net: network, source: src, stop: sync.OnceFunc(end)}
	m.t.Cleanup(s.stop)
	waitFor(m.t, func() bool { return front.admitted() != nil })
	return s
}

// empty waits until links are removed, and asserts that none is left.
func (m *machine) empty(s *started) {
	m.t.Helper()
	waitFor(m.t, func() bool { return s.reaper.count() == 0 })
	if links, routes := m.inventory(s); links+routes != 0 {
		m.t.Errorf("kernel has %d links and %d routes, want none", links, routes)
	}
}

// deleteLink removes a link, as other software may do.
func (m *machine) deleteLink(name string) {
	m.t.Helper()
	link, err := m.net.LinkByName(name)
	if err == nil {
		err = m.net.LinkDel(link)
	}
	must(m.t, err)
}

func (m *machine) inventory(s *started) (links, routes int) {
	m.t.Helper()
	inv, err := s.net.Inventory(context.Background())
	must(m.t, err)
	return len(inv.Links), len(inv.Routes)
}

// A namespace can be used again under another container ID, immediately after the DEL of the first.
func TestNamespaceOfRemovedPodCanBeReused(t *testing.T) {
	m := newMachine(t, 2)
	s := m.start(time.Hour)
	netns := mustSpace(t)
	for _, c := range []string{"a", "b"} {
		s.attached(t, c, netns)
		must(t, s.attachments.del(context.Background(), keyFor(c)))
	}
	m.empty(s)
}

func mustSpace(t testing.TB) string {
	path, _ := newSpace(t)
	return path
}

func TestAddCancelledDuringKernelWorkIsUndone(t *testing.T) {
	m := newMachine(t, 1)
	s := m.start(time.Hour)
	ctx, cancel := context.WithCancel(context.Background())
	s.attachments.wiring.kernel = &interceptedKernel{Kernel: s.Kernel, before: cancel}
	if _, err := s.attach(ctx, "a", mustSpace(t)); !errors.Is(err, context.Canceled) {
		t.Fatalf("attach() = %v, want context.Canceled", err)
	}
	if links, routes := m.inventory(s); links+routes != 0 {
		t.Errorf("kernel has %d links and %d routes, want none", links, routes)
	}
	if s.source.Cancels() != 1 || len(s.Store.Records()) != 0 {
		t.Errorf("cancels = %d, records = %v; want 1 and none", s.source.Cancels(), s.Store.Records())
	}
}

// interceptedKernel calls a hook before a pod is added.
type interceptedKernel struct {
	Kernel
	before func()
}

func (k *interceptedKernel) AddPod(ctx context.Context, p datapath.Pod) (datapath.PodLinks, error) {
	k.before()
	return k.Kernel.AddPod(ctx, p)
}

func TestRepairSparesPodWithDamagedRecord(t *testing.T) {
	m := newMachine(t, 2)
	s := m.start(time.Hour)
	rec := s.attached(t, "a", mustSpace(t))
	s.stop()
	file := filepath.Join(m.dir, "attachments", "attachment-"+rec.HostLink+".json")
	must(t, os.WriteFile(file, []byte("{"), 0o600))
	s = m.start(time.Hour)
	s.repairer.repair(context.Background())
	if links, routes := m.inventory(s); links != 1 || routes != 1 {
		t.Errorf("after a repair the kernel has %d links and %d routes, want 1 and 1", links, routes)
	}
	must(t, s.attachments.del(context.Background(), keyFor("a")))
	m.empty(s)
}

func TestInvalidNetnsPaths(t *testing.T) {
	m := newMachine(t, 1)
	s := m.start(time.Hour)
	plain := filepath.Join(t.TempDir(), "plain") // an unmounted namespace leaves a plain file behind
	must(t, os.WriteFile(plain, nil, 0o600))
	fifo := plain + "-fifo"
	must(t, unix.Mkfifo(fifo, 0o600))
	for path, what := range map[string]string{
		plain: "a file", "/proc/self/ns/pid": "another namespace", t.TempDir(): "a folder", fifo: "a FIFO", "/dev/null": "a device",
		plain + "x": "does not exist", strings.Repeat("/x", 5000): "too long",
	} {
		_, err := s.attach(context.Background(), "a", path)
		if f := cnierror.Of(err); err == nil || f.Code != 8 || !strings.Contains(f.Message, what) {
			t.Errorf("%.40s: error = %.200v, want code 8 and %q", path, err, what)
		}
	}
}

func TestDeletedLinkAndRouteAreRepaired(t *testing.T) {
	m := newMachine(t, 2)
	s := m.start(time.Hour)
	ns := mustSpace(t)
	rec := s.attached(t, "a", ns)
	intact := func() bool {
		return s.attachments.check(context.Background(), keyFor("a"), ns, previous{"eth0": rec.Lease.Addrs()}) == nil
	}
	routes, err := m.net.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: datapath.PodTable}, netlink.RT_FILTER_TABLE)
	if err != nil || len(routes) != 1 {
		t.Fatalf("routes = %v, error %v; want one", routes, err)
	}
	must(t, m.net.RouteDel(&routes[0]))
	waitFor(t, intact)
	m.deleteLink(rec.HostLink)
	waitFor(t, intact)
}

func TestOwnChangesCauseNoRepair(t *testing.T) {
	m := newMachine(t, 8)
	s := m.start(time.Millisecond)
	events, err := s.net.Watch(t.Context())
	must(t, err)
	ns := mustSpace(t)
	for range 4 {
		s.attached(t, "a", ns)
		must(t, s.attachments.del(context.Background(), keyFor("a")))
	}
	waitFor(t, func() bool { return s.reaper.count() == 0 })
	// A foreign link is the last event, so all earlier ones were examined.
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "last0"
	addVeth(t, m.net, attrs, "last1")
	for e := range events {
		if e.Link == "last0" {
			return
		}
		if s.repairer.disturbed(e) {
			t.Errorf("an ADD or DEL was mistaken for a foreign change: %+v", e)
		}
	}
}

// The path of a pod's namespace may lead elsewhere at any time: between inspection and setup, and
// while the pod runs. The pod keeps its address.
func TestNetnsPathChanges(t *testing.T) {
	m := newMachine(t, 2)
	s := m.start(time.Hour)
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "netns")
	lead := func(to string) {
		_ = os.Remove(path)
		if err := os.Symlink(to, path); err != nil {
			t.Error(err)
		}
	}
	own := mustSpace(t)
	other, inOther := newSpace(t)
	untouched := func(when string) {
		t.Helper()
		if _, err := inOther.LinkByName("eth0"); err == nil {
			t.Errorf("%s: another pod's namespace has the link", when)
		}
	}
	kernel := s.Kernel
	s.attachments.wiring.kernel = &interceptedKernel{Kernel: kernel, before: func() { lead(other) }}
	lead(own)
	_, err := s.attach(ctx, "a", path)
	if err == nil || cnierror.Of(err).Reason != "netns-missing" {
		t.Errorf("ADD = %v, want error with reason netns-missing", err)
	}
	untouched("ADD")

	s.attachments.wiring.kernel = kernel
	lead(own)
	rec := s.attached(t, "a", path)
	lead(other)
	m.deleteLink(rec.HostLink)
	s.repairer.repair(ctx)
	untouched("repair")
	if err := s.attachments.del(ctx, keyFor("a")); err != nil {
		t.Error(err)
	}
	untouched("DEL")
}
