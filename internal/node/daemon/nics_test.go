package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/cnierror"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/internal/source"
)

// newPortNode returns a node that is configured to plug NICs into pods.
func newPortNode(t *testing.T, addrs ...string) *node {
	n := newNode(t, addrs...)
	n.board = newSwitchboard()
	return n
}

// testNIC returns the NIC of a port that is bound to the node.
func testNIC(ifName, port string) attachment.NIC {
	return attachment.NIC{
		Object: "nic-" + port, UID: "uid-" + port, Port: port, IfName: ifName, MAC: []byte{0xfa, 0x16, 0x3e, 0, 0, 1}, MTU: 1442,
		Addresses: []attachment.NICAddress{{CIDR: netip.MustParsePrefix("192.168.0.12/24"), Gateway: netip.MustParseAddr("192.168.0.1")}},
		Plug:      attachment.Plug{Type: "OVS", Bridge: "br-int"},
	}
}

// testBranch returns the NIC of a branch that is bound to the node, as a pod's first interface.
func testBranch(port string) attachment.NIC {
	n := testNIC("eth0", port)
	n.Plug = attachment.Plug{Type: string(plug.RoutedVLAN), Trunk: "0a:ff:ff:00:00:01", VLAN: 7, Enforcing: string(plug.Strict)}
	n.DefaultRoute = true
	return n
}

// replyLink returns a testNIC as an additional interface in the reply to the pod's ADD.
func replyLink(name, port string) *rpc.Link {
	return &rpc.Link{
		Host:      &rpc.Interface{Name: "tap" + port, Mac: "02:00:00:00:01:01"},
		Sandbox:   &rpc.Interface{Name: name, Mac: "fa:16:3e:00:00:01"},
		Addresses: []*rpc.Address{{Cidr: "192.168.0.12/24", Gateway: "192.168.0.1"}}, Mtu: 1442,
	}
}

// A pod whose first interface is a branch uses no address of its node, but its reply looks like that
// of a pod that does. Other pods are not affected.
func TestPodOfABranch(t *testing.T) {
	n := newPortNode(t, "10.0.0.5")
	r := n.start()
	r.nics.bind("pod-a", testBranch("p-0"), testNIC("eth1", "p-1"))
	reply := mustAdd(t, r, "a", n.newNetns("a"))
	const link = "tapp-0"
	want := &rpc.AddReply{
		Host:      &rpc.Interface{Name: link, Mac: "02:00:00:00:01:01"},
		Sandbox:   &rpc.Interface{Name: "eth0", Mac: "fa:16:3e:00:00:01"},
		Addresses: []string{"192.168.0.12/32"}, Mtu: 1442,
		Routes: []*rpc.Route{{Dst: "169.254.1.1/32"}, {Dst: "0.0.0.0/0", Gateway: "169.254.1.1"}},
		Links:  []*rpc.Link{replyLink("eth1", "p-1")},
	}
	if diff := cmp.Diff(want, reply, protocmp.Transform()); diff != "" {
		t.Errorf("reply (-want +got):\n%s", diff)
	}
	if holder, held := r.source.Holder(n.addrs[0]); held {
		t.Errorf("%s has the node's address", holder)
	}
	r.wantAddress(t, "b", n.newNetns("b"), "10.0.0.5") // the node's only address
	check := func(address string) error {
		_, err := r.client.Check(within(t), &rpc.CheckRequest{Attachment: addOf("a", "").GetAttachment(), Netns: "/run/netns/a", Addresses: []string{address}, Links: reply.GetLinks()})
		return err
	}
	must(t, check("192.168.0.12/32"))
	wantFailure(t, check("10.0.0.5/32"), cnierror.CodeMismatch)
	a := askPod(t, frontOf(r), "namespace=default&name=pod-a").Attachments[0]
	if a.Address.String() != "192.168.0.12" || a.HostLink != link || a.MTU != 1442 || !a.Checked || a.Fault != "" || len(a.NICs) != 2 {
		t.Errorf("%+v", a)
	}
	if doc := r.inspector.document(); len(doc.Allocated) != 1 || len(doc.NICs) != 2 {
		t.Errorf("the document has %+v and %+v", doc.Allocated, doc.NICs)
	}

	r = n.restart(r)
	n.wantKernel(t, 1, 1)
	n.board.want(t, "p-0", "p-1")
	if again := mustAdd(t, r, "a", "/run/netns/a"); !cmp.Equal(again, reply, protocmp.Transform()) {
		t.Errorf("again %v, first %v", again, reply)
	}
	mustDel(t, r, "a")
	n.board.want(t)
	n.wantKernel(t, 1, 1)
	if left := r.Store.CoolingRecords(); len(left) > 0 {
		t.Errorf("there cools %+v", left)
	}
	if holder, held := r.source.Holder(n.addrs[0]); !held || holder != keyFor("b") {
		t.Errorf("the address of the pod beside it is %v's, %v", holder, held)
	}
}

func TestPodWithAFurtherNIC(t *testing.T) {
	n := newPortNode(t, "10.0.0.5")
	r := n.start()
	r.nics.bind("pod-a", testNIC("eth1", "p-1"), testNIC("eth2", "p-2"))
	reply := mustAdd(t, r, "a", n.newNetns("a"))
	if got := reply.GetAddresses(); len(got) != 1 || got[0] != "10.0.0.5/32" || reply.GetSandbox().GetName() != "eth0" {
		t.Errorf("the first interface is %v", reply)
	}
	if diff := cmp.Diff([]*rpc.Link{replyLink("eth1", "p-1"), replyLink("eth2", "p-2")}, reply.GetLinks(), protocmp.Transform()); diff != "" {
		t.Errorf("further interfaces (-want +got):\n%s", diff)
	}
	n.board.want(t, "p-1", "p-2")
	n.wantKernel(t, 1, 1)
	if again := mustAdd(t, r, "a", "/run/netns/a"); !cmp.Equal(again, reply, protocmp.Transform()) {
		t.Errorf("again %v, first %v", again, reply)
	}
	mustDel(t, r, "a")
	n.board.want(t)
	if _, cools := r.Store.Cooling(n.addrs[0]); !cools {
		t.Error("the address does not cool")
	}
	mustDel(t, r, "a")
}

func TestPodOfNICsAlone(t *testing.T) {
	n := newPortNode(t)
	r := n.start()
	r.source.Nothing = true
	first := testNIC("eth0", "p-0")
	first.DefaultRoute = true
	first.Routes = []attachment.NICRoute{{Destination: netip.MustParsePrefix("172.16.0.0/12")}}
	r.nics.bind("pod-a", testNIC("eth1", "p-1"), first)
	req := addOf("a", n.newNetns("a"))
	reply, err := r.client.Add(within(t), req, grpc.WaitForReady(true))
	must(t, err)
	want := &rpc.AddReply{
		Host:      &rpc.Interface{Name: "tapp-0", Mac: "02:00:00:00:01:01"},
		Sandbox:   &rpc.Interface{Name: "eth0", Mac: "fa:16:3e:00:00:01"},
		Addresses: []string{"192.168.0.12/24"}, Mtu: 1442,
		Routes: []*rpc.Route{{Dst: "0.0.0.0/0", Gateway: "192.168.0.1"}, {Dst: "172.16.0.0/12"}},
		Links:  []*rpc.Link{replyLink("eth1", "p-1")},
	}
	if diff := cmp.Diff(want, reply, protocmp.Transform()); diff != "" {
		t.Errorf("reply (-want +got):\n%s", diff)
	}
	n.board.want(t, "p-0", "p-1")
	n.wantKernel(t, 0, 0)
	r = n.restart(r)
	n.board.want(t, "p-0", "p-1")
	mustDel(t, r, "a")
	n.board.want(t)
	if left := r.Store.Records(); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// CHECK verifies the plugged NICs, and compares the addresses of each of Berth's interfaces with
// those in prevResult.
func TestCheckWithNICs(t *testing.T) {
	n := newPortNode(t, "10.0.0.5")
	r := n.start()
	r.nics.bind("pod-a", testNIC("eth1", "p-1"))
	mustAdd(t, r, "a", n.newNetns("a"))
	check := func(ifName, cidr string) error {
		_, err := r.client.Check(within(t), &rpc.CheckRequest{
			Attachment: addOf("a", "").GetAttachment(), Netns: "/run/netns/a", Addresses: []string{"10.0.0.5/32"},
			Links: []*rpc.Link{{Sandbox: &rpc.Interface{Name: ifName}, Addresses: []*rpc.Address{{Cidr: cidr}}}},
		})
		return err
	}
	must(t, check("eth1", "192.168.0.12/24"))
	must(t, check("net1", "192.168.0.13/24")) // an interface of another plugin
	if f := wantFailure(t, check("eth1", "192.168.0.13/24"), cnierror.CodeMismatch); !strings.Contains(f.GetMessage(), "interface eth1 of attachment berth/a/eth0 holds [192.168.0.12], not 192.168.0.13") {
		t.Errorf("message %q", f.GetMessage())
	}
	wantFailure(t, check("eth1", "x"), types.ErrInvalidNetworkConfig)
	n.board.lose()
	if f := wantFailure(t, check("eth1", "192.168.0.12/24"), cnierror.CodeMismatch); !strings.Contains(f.GetDetails(), "NIC eth1, port p-1: is not plugged") {
		t.Errorf("details %q", f.GetDetails())
	}
	// Repeating the ADD plugs the NIC again.
	mustAdd(t, r, "a", "/run/netns/a")
	must(t, check("eth1", "192.168.0.12/24"))
}

// The node's documents include the NICs. If a pod has only NICs, its address is that of the NIC with
// the interface name of the attachment.
func TestDocumentsHaveNICs(t *testing.T) {
	n := newPortNode(t)
	r := n.assemble()
	r.source.Nothing = true
	six := testNIC("eth0", "p-0")
	six.Addresses = append(six.Addresses, attachment.NICAddress{CIDR: netip.MustParsePrefix("2001:db8::5/64")})
	r.nics.bind("web-0", testNIC("eth1", "p-1"), six)
	want := attachment.Record{Key: keyFor("a"), Netns: attachment.Netns{Path: n.newNetns("a")}, Pod: attachment.Pod{Namespace: "shop", Name: "web-0"}}
	_, err := r.attachments.add(within(t), want, attachment.PodOptions{})
	must(t, err)
	doc := r.inspector.document()
	nic := func(ifName, port string, addrs ...string) introspect.NIC {
		n := introspect.NIC{
			Namespace: "shop", Pod: "web-0", ContainerID: "a", Network: "berth", Interface: ifName, PodNIC: "nic-" + port, Port: port,
			MAC: "fa:16:3e:00:00:01", MTU: 1442, Plug: "OVS", HostLink: "tap" + port,
		}
		for _, a := range addrs {
			n.Addresses = append(n.Addresses, netip.MustParsePrefix(a))
		}
		return n
	}
	all := []introspect.NIC{nic("eth0", "p-0", "192.168.0.12/24", "2001:db8::5/64"), nic("eth1", "p-1", "192.168.0.12/24")}
	same := cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{})
	if diff := cmp.Diff(all, doc.NICs, same); diff != "" {
		t.Errorf("NICs (-want +got):\n%s", diff)
	}
	if len(doc.Allocated) != 0 {
		t.Errorf("allocated %+v: no address is leased", doc.Allocated)
	}
	a := askPod(t, frontOf(r), "namespace=shop&name=web-0").Attachments[0]
	if diff := cmp.Diff(all, a.NICs, same); diff != "" {
		t.Errorf("NICs of the pod (-want +got):\n%s", diff)
	}
	if a.Address.String() != "192.168.0.12" || a.IPv6.String() != "2001:db8::5" || a.HostLink != "tapp-0" || a.MTU != 1442 || !a.Checked || a.Fault != "" || len(a.Rules) != 0 {
		t.Errorf("%+v", a)
	}
	n.board.lose()
	if a := askPod(t, frontOf(r), "namespace=shop&name=web-0").Attachments[0]; !strings.Contains(a.Fault, "NIC eth1, port p-1: is not plugged") {
		t.Errorf("unplugged: %+v", a)
	}
}

// The daemon replugs NICs that other software unplugged, when it notices and at startup. It removes
// ports without a record at startup, or as soon as the switch allows it.
func TestNICsAreKept(t *testing.T) {
	n := newPortNode(t, "10.0.0.5", "10.0.0.6")
	r := n.restart(nil)
	r.nics.bind("pod-a", testNIC("eth1", "p-1"))
	mustAdd(t, r, "a", n.newNetns("a"))
	mustAdd(t, r, "b", n.newNetns("b"))
	plugged := func() int {
		n.board.mu.Lock()
		defer n.board.mu.Unlock()
		return len(n.board.plugs)
	}
	seen := func(ready func() bool) {
		t.Helper()
		defer n.tick()()
		waitFor(t, ready)
	}
	n.board.lose()
	r.nics.changed.Set()
	seen(func() bool { return plugged() == 1 })
	n.board.want(t, "p-1")

	// During a call for the container, the NIC is not replugged; soon after the call, it is.
	unlock, err := r.attachments.locks.lock(t.Context(), "a")
	must(t, err)
	n.board.lose()
	r.nics.changed.Set()
	seen(func() bool { return len(r.nics.changed) == 0 })
	n.clock.Advance(repairDebounce)
	unlock()
	waitFor(t, func() bool { n.clock.Advance(againAfter); return plugged() == 1 })

	r.stop()
	n.board.lose()
	n.board.plug("bthgone", "p-9")
	n.board.set("Sweep", errors.New("nobody answers"))
	r = n.restart(nil)
	seen(func() bool { return plugged() == 2 })
	n.board.set("Sweep", nil)
	r.nics.changed.Set()
	seen(func() bool { return plugged() == 1 })
	n.board.want(t, "p-1")

	// Nothing is plugged if the network namespace is gone.
	n.removeNetns("/run/netns/a")
	n.board.lose()
	plugs := n.board.count("Plug")
	r.nics.changed.Set()
	checks := n.board.count("Check")
	seen(func() bool { return n.board.count("Check") > checks })
	r.stop()
	if n.board.count("Plug") != plugs {
		t.Error("plugged into a namespace that is gone")
	}
}

// Replugging a NIC is retried with growing delays, up to the interval of repairs. After a success, the
// next failure is retried soon.
func TestNICsThatCannotBePluggedAgain(t *testing.T) {
	n := newPortNode(t, "10.0.0.5")
	r := n.restart(nil)
	r.nics.bind("pod-a", testNIC("eth1", "p-1"))
	mustAdd(t, r, "a", n.newNetns("a"))
	n.board.set("Plug", plug.ErrNameTaken)
	n.board.lose()
	tried := n.board.count("Plug")
	r.nics.changed.Set()
	waitFor(t, func() bool { n.clock.Advance(againAfter); return n.board.count("Plug") > tried+5 })
	passes := func(times int, d time.Duration) { // advances the clock in steps that the keeper observes
		for range times {
			n.clock.Advance(d)
			for range 2 {
				r.nics.news.Set()
				waitFor(t, func() bool { return len(r.nics.news) == 0 })
			}
		}
	}
	passes(60, time.Minute) // a retry may have been due
	tried = n.board.count("Plug")
	passes(60, time.Minute)
	if got := n.board.count("Plug") - tried; got > 4 {
		t.Errorf("tried %d times within an hour, at intervals of minutes", got)
	}
	n.board.set("Plug", nil)
	waitFor(t, func() bool {
		n.clock.Advance(time.Minute)
		n.board.mu.Lock()
		defer n.board.mu.Unlock()
		return len(n.board.plugs) == 1
	})
	n.board.set("Plug", plug.ErrNameTaken)
	n.board.lose()
	tried = n.board.count("Plug")
	r.nics.changed.Set()
	waitFor(t, func() bool { n.clock.Advance(repairDebounce); return n.board.count("Plug") > tried })
	passes(2, againAfter)
	if n.board.count("Plug") == tried+1 {
		t.Error("it was not tried again soon")
	}
}

// A recreated port replaces the former one, even if the daemon crashes in between.
func TestRecreatedPortReplacesTheFormer(t *testing.T) {
	n := newPortNode(t, "10.0.0.5")
	r := n.restart(nil)
	r.nics.bind("pod-a", testNIC("eth1", "p-1"), testNIC("eth2", "p-2"))
	mustAdd(t, r, "a", n.newNetns("a"))
	becomes := func(r *running, port string) {
		t.Helper()
		defer n.tick()()
		waitFor(t, func() bool {
			rec, ok := r.Store.ByPort(port)
			return ok && rec.NICs[1].Port == port && rec.NICs[1].State == attachment.Plugged
		})
	}
	r.nics.bind("pod-a", testNIC("eth1", "p-1"), testNIC("eth2", "p-3"))
	r.nics.news.Set()
	becomes(r, "p-3")
	n.board.hear()
	n.board.want(t, "p-1", "p-3")
	if _, ok := r.Store.ByPort("p-2"); ok {
		t.Error("the port that went is recorded")
	}

	broken, err := failpoint.Set("daemon.nics.recorded=error@1")
	must(t, err)
	defer broken()
	r.nics.bind("pod-a", testNIC("eth1", "p-1"), testNIC("eth2", "p-4"))
	r.nics.news.Set()
	func() {
		defer n.tick()()
		waitFor(t, func() bool { _, ok := r.Store.ByPort("p-4"); return ok })
	}()
	r = n.restart(r)
	r.nics.bind("pod-a", testNIC("eth1", "p-1"), testNIC("eth2", "p-4"))
	r.nics.news.Set()
	becomes(r, "p-4")
	n.board.hear()
	n.board.want(t, "p-1", "p-4")
	mustDel(t, r, "a")
	n.board.hear()
	n.board.want(t)
}

// Startup does not wait for an unreachable switch. NICs that could not be unplugged are unplugged later.
func TestStartWithoutASwitch(t *testing.T) {
	n := newPortNode(t, "10.0.0.5", "10.0.0.6", "10.0.0.7")
	r := n.restart(nil)
	for _, c := range []string{"a", "b", "c"} {
		r.nics.bind("pod-"+c, testNIC("eth1", "p-"+c))
		mustAdd(t, r, c, n.newNetns(c))
	}
	for _, c := range []string{"a", "b"} { // their removal was interrupted
		rec, _ := r.Store.Get(keyFor(c))
		rec.State = attachment.Releasing
		must(t, r.Store.Put(rec))
	}
	r.stop()
	for _, method := range []string{"Plug", "Unplug", "Check", "Plugs", "Sweep"} {
		n.board.set(method, plug.ErrUnreachable)
	}
	before := n.board.count("Unplug")
	r = n.restart(nil)
	if got := n.board.count("Unplug") - before; got != 1 {
		t.Errorf("the start tried %d times to unplug something", got)
	}
	if f := r.refused(t, addOf("a", "/run/netns/a"), types.ErrTryAgainLater); !strings.Contains(f.GetMessage(), "unplugging NIC eth1, port p-a") {
		t.Errorf("message %q", f.GetMessage())
	}
	for _, method := range []string{"Plug", "Unplug", "Check", "Plugs", "Sweep"} {
		n.board.set(method, nil)
	}
	n.clock.Advance(kernelTimeout)
	waitFor(t, func() bool {
		n.clock.Advance(time.Second)
		return len(r.Store.Records()) == 1
	})
	n.board.want(t, "p-c")
}

// While Open vSwitch is unreachable, the keeper checks only one of its NICs and plugs nothing. At
// shutdown, this holds for all kinds of NIC.
func TestKeepingNICsWithoutASwitch(t *testing.T) {
	for _, kind := range []plug.Kind{plug.OVS, plug.Netns, plug.VLAN, plug.RoutedVLAN} {
		n := newPortNode(t, "10.0.0.5", "10.0.0.6", "10.0.0.7")
		r := n.start()
		for _, c := range []string{"a", "b", "c"} {
			nic := testNIC("eth1", "p-"+c)
			nic.Plug.Type = string(kind)
			r.nics.bind("pod-"+c, nic)
			mustAdd(t, r, c, n.newNetns(c))
		}
		r.stop()
		k := r.keepers[0]
		look := func(ctx context.Context, name string, wantChecks, wantPlugs int) {
			t.Helper()
			n.board.lose()
			checks, plugs := n.board.count("Check"), n.board.count("Plug")
			k.check(ctx, r.Store.Records())
			if checks, plugs = n.board.count("Check")-checks, n.board.count("Plug")-plugs; checks != wantChecks || plugs != wantPlugs {
				t.Errorf("%s, %s: %d NICs looked at and %d plugged, want %d and %d", kind, name, checks, plugs, wantChecks, wantPlugs)
			}
		}
		n.board.set("Check", plug.ErrUnreachable)
		look(t.Context(), "away", map[plug.Kind]int{plug.OVS: 1, plug.Netns: 3, plug.VLAN: 3, plug.RoutedVLAN: 3}[kind], 0)
		n.board.set("Check", nil)
		look(t.Context(), "back", 3, 3)
		ctx, cancel := context.WithCancel(t.Context())
		n.board.onEnter("Check", cancel)
		look(ctx, "at the end", 1, 0)
	}
}

// The damaged record of a pod with plugged NICs is kept until the pod's DEL.
func TestDamagedRecordWithNICs(t *testing.T) {
	for name, pod := range portPods {
		t.Run(name, func(t *testing.T) {
			n := newPortNode(t, pod.addrs...)
			r := n.startPorts(pod.nics)
			mustAdd(t, r, "a", n.newNetns("a"))
			r.stop()
			n.damage("a", 30)
			r = n.startPorts(nil)
			r.sweeper.sweep(within(t))
			n.board.mu.Lock()
			left := len(n.board.plugs)
			n.board.mu.Unlock()
			if left != 2 || len(r.quarantine.all()) != 1 {
				t.Fatalf("%d plugs, damaged %v", left, r.quarantine.all())
			}
			mustDel(t, r, "a")
			func() {
				defer n.tick()()
				waitFor(t, func() bool { return r.reaper.count() == 0 })
			}()
			n.board.hear()
			n.wantAllPlugged(t, r)
			if len(r.quarantine.all()) != 0 {
				t.Errorf("damaged %v", r.quarantine.all())
			}
		})
	}
}

// A reboot removes links but leaves rows in the switch's database. They are removed before the record.
func TestRebootWithNICs(t *testing.T) {
	for name, pod := range portPods {
		t.Run(name, func(t *testing.T) {
			n := newPortNode(t, pod.addrs...)
			r := n.startPorts(pod.nics)
			mustAdd(t, r, "a", n.newNetns("a"))
			r.stop()
			n.ident.BootID, n.kernel = "boot-2", newFakeKernel()
			n.removeNetns("/run/netns/a")
			n.board.set("Unplug", plug.ErrUnreachable)
			r = n.startPorts(pod.nics)
			if len(r.Store.Records()) != 1 {
				t.Error("the record went before its NICs")
			}
			n.board.set("Unplug", nil)
			r = n.restart(r)
			n.wantAllPlugged(t, r)
			if len(r.Store.CoolingRecords()) != 0 {
				t.Error("an address cools that the reboot freed")
			}
		})
	}
}

// A daemon that is no longer configured for NICs or egress keeps the addresses of pods that use them. CHECK and ADD
// report the missing configuration, and DEL still works.
func TestPartThatIsNoLongerConfigured(t *testing.T) {
	for name, tc := range map[string]struct {
		nics   []attachment.NIC
		egress *attachment.Egress
		says   string
	}{
		"NICs":   {[]attachment.NIC{testNIC("eth1", "p-1")}, nil, "not configured to plug any"},
		"egress": {nil, testEgress("nat"), "not configured to set that up"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newPortNode(t, "10.0.0.5")
			n.tunnels = newTunnels()
			r := n.startPorts(tc.nics)
			r.egress.says("pod-a", tc.egress)
			mustAdd(t, r, "a", n.newNetns("a"))
			r.stop()
			board := n.board
			n.board, n.tunnels = nil, nil
			r = n.restart(nil)
			n.wantKernel(t, 1, 1)
			_, err := r.client.Check(within(t), checkOf("a"))
			if f := wantFailure(t, err, cnierror.CodeMismatch); !strings.Contains(f.GetDetails(), tc.says) {
				t.Errorf("CHECK says %v", f)
			}
			if f := r.refused(t, addOf("a", "/run/netns/a"), cnierror.CodeKernel); !strings.Contains(f.GetDetails(), tc.says) {
				t.Errorf("%v", f)
			}
			mustDel(t, r, "a")
			r.stop()
			n.board = board // configured again: the daemon removes leftover ports
			n.restart(nil)
			n.board.want(t)
		})
	}
}

// Plugging errors map to CNI error codes and to reasons.
func TestFailuresOfNICs(t *testing.T) {
	for err, want := range map[error]struct {
		code   uint
		reason string
	}{
		plug.ErrInvalid:         {types.ErrInvalidNetworkConfig, "nic-invalid"},
		plug.ErrDefaultRoute:    {types.ErrInvalidNetworkConfig, "nic-invalid"},
		plug.ErrNoBridge:        {types.ErrTryAgainLater, "nic-switch"},
		plug.ErrUnreachable:     {types.ErrTryAgainLater, "nic-switch"},
		plug.ErrNotReady:        {types.ErrTryAgainLater, "nic-not-ready"},
		plug.ErrPortInUse:       {types.ErrTryAgainLater, "port-in-use"},
		datapath.ErrNoNetns:     {types.ErrInvalidNetNS, "netns-missing"},
		plug.ErrInterfaceExists: {cnierror.CodeKernel, "nic"},
		error(&source.Exhausted{Reason: "agent-away", Message: "m"}): {types.ErrTryAgainLater, "agent-away"},
	} {
		n := newPortNode(t, "10.0.0.5")
		r := n.start()
		r.nics.bind("pod-a", testNIC("eth1", "p-1"), testNIC("eth2", "p-2"))
		n.board.set("Plug", fmt.Errorf("plugging: %w", err))
		stop := n.tick()
		f := r.refused(t, addOf("a", n.newNetns("a")), want.code)
		if f.GetMessage() != "plugging NIC eth1, port p-1" || f.GetDetails() != "plugging: "+err.Error() {
			t.Errorf("%v: %v", err, f)
		}
		if _, err := r.keepers[0].part.SetUp(t.Context(), attachment.Record{NICs: []attachment.NIC{testNIC("eth1", "p-1")}}); cnierror.Of(err).Reason != want.reason {
			t.Errorf("%v, want reason %s", err, want.reason)
		}
		stop()
		n.board.want(t)
		n.wantKernel(t, 0, 0)
		r.stop()
	}
}

// In the reply, a NIC's default route replaces that of the pod's first interface in the same family.
func TestReplyWithADefaultRouteOfANIC(t *testing.T) {
	rec := recordOf("a", attachment.Lease{IPv4: netip.MustParseAddr("10.0.0.5"), IPv6: netip.MustParseAddr("2001:db8::5")})
	routes := func(r *rpc.AddReply) (out []string) {
		for _, one := range r.GetRoutes() {
			out = append(out, one.GetDst()+" "+one.GetGateway())
		}
		return out
	}
	nic := testNIC("eth1", "p-1")
	rec.NICs = []attachment.NIC{nic}
	want := []string{"169.254.1.1/32 ", "0.0.0.0/0 169.254.1.1", "::/0 fe80::1"}
	if diff := cmp.Diff(want, routes(replyOf(rec))); diff != "" {
		t.Errorf("without (-want +got):\n%s", diff)
	}
	nic.DefaultRoute = true
	rec.NICs = []attachment.NIC{nic}
	reply := replyOf(rec)
	if diff := cmp.Diff([]string{"169.254.1.1/32 ", "::/0 fe80::1"}, routes(reply)); diff != "" {
		t.Errorf("with (-want +got):\n%s", diff)
	}
	if got := reply.GetLinks()[0].GetRoutes(); len(got) != 1 || got[0].GetDst() != "0.0.0.0/0" || got[0].GetGateway() != "192.168.0.1" {
		t.Errorf("routes of the NIC: %v", got)
	}
}
