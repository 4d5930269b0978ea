package daemon

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"google.golang.org/grpc"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/rpc"
)

// newNodeLocal returns a node whose pods have IPv6 addresses, and node-local IPv4 ones.
func newNodeLocal(t *testing.T, addrs ...string) *node {
	n := newNode(t, addrs...)
	n.nodeLocal = true
	return n
}

// local is a pod's node-local address, by its record.
func (r *running) local(t *testing.T, container string) netip.Addr {
	t.Helper()
	rec, ok := r.Store.Get(keyFor(container))
	if !ok || !rec.Lease.NodeLocal.IsValid() {
		t.Fatalf("%s has no node-local address: %+v", container, rec.Lease)
	}
	return rec.Lease.NodeLocal
}

// A node-local address is in kernel and record, but not in the reply or CHECK. It survives a restart,
// and ends with the pod.
func TestNodeLocalAddress(t *testing.T) {
	n := newNodeLocal(t, "2001:db8::5", "2001:db8::6")
	r := n.restart(nil)
	ns := n.newNetns("a")
	reply := mustAdd(t, r, "a", ns)
	if got := reply.GetAddresses(); !slices.Equal(got, []string{"2001:db8::5/128"}) || len(reply.GetRoutes()) != 1 {
		t.Errorf("the runtime hears of %v and %v", got, reply.GetRoutes())
	}
	local := r.local(t, "a")
	if _, err := r.client.Check(within(t), &rpc.CheckRequest{Attachment: addOf("a", "").Attachment, Netns: ns, Addresses: reply.GetAddresses()}, grpc.WaitForReady(true)); err != nil {
		t.Error(err)
	}
	if got := r.inspector.document().Allocated[0]; got.Address != n.addrs[0] || got.NodeLocal != local {
		t.Errorf("introspection tells %+v", got)
	}
	n.wantKernel(t, 1, 2)
	r.stop()
	n.kernel.dropRoutes()

	r = n.restart(nil)
	n.wantKernel(t, 1, 2)
	must(t, r.Store.PutCooling(attachment.Cooling{Addr: local.Next()})) // which has cooled, and nobody removed yet
	mustAdd(t, r, "b", n.newNetns("b"))
	if other := r.local(t, "b"); other != local.Next() {
		t.Errorf("pods have %s and %s", local, other)
	}
	if _, ok := r.Store.Cooling(local.Next()); ok {
		t.Errorf("%s is held and recorded as cooling", local.Next())
	}
	defer n.tick()()
	mustDel(t, r, "a")
	must(t, r.reaper.await(within(t), hostLinkName(keyFor("a")), attachment.Netns{}))
	n.wantKernel(t, 1, 2)
	for _, a := range []netip.Addr{n.addrs[0], local} {
		if _, ok := r.Store.Cooling(a); !ok {
			t.Errorf("%s does not cool", a)
		}
	}
}

// The addresses of a damaged record are known from its rest and from the kernel's routes: the
// node-local one is withheld, too, and cools with the pod.
func TestNodeLocalAddressOfADamagedRecord(t *testing.T) {
	for keep := 5; keep < 100; keep += 10 {
		t.Run(fmt.Sprint(keep), func(t *testing.T) {
			n := newNodeLocal(t, "2001:db8::5", "2001:db8::6")
			r := n.restart(nil)
			mustAdd(t, r, "a", n.newNetns("a"))
			local := r.local(t, "a")
			r.stop()
			n.damage("a", keep)
			r = n.restart(nil)
			n.wantKernel(t, 1, 2)
			mustAdd(t, r, "b", n.newNetns("b"))
			n.wantKernel(t, 2, 4) // four addresses, each once
			defer n.tick()()
			mustDel(t, r, "a")
			must(t, r.reaper.await(within(t), hostLinkName(keyFor("a")), attachment.Netns{}))
			n.wantKernel(t, 1, 2)
			if _, ok := r.Store.Cooling(local); !ok {
				t.Errorf("%s does not cool", local)
			}
		})
	}
}

// A node-local address that somebody removes is restored, and goes with the pod.
func TestNodeLocalAddressIsRepaired(t *testing.T) {
	n := newNodeLocal(t, "2001:db8::5")
	r := n.restart(nil)
	rec := r.attached(t, "a", n.newNetns("a"))
	n.kernel.dropRoute(rec.Lease.NodeLocal)
	rp := &repairer{store: r.Store, kernel: n.kernel, again: r.attachments.addAgainLater}
	if did, err := rp.repairPods(within(t)); err != nil || len(did) != 1 {
		t.Errorf("repaired %v, %v", did, err)
	}
	n.wantKernel(t, 1, 2)
	must(t, r.attachments.wiring.unwire(within(t), rec)) // the link stays until it is reaped, without a route
	n.wantKernel(t, 1, 0)
	defer n.tick()()
	must(t, r.attachments.undo(within(t), rec))
	n.wantKernel(t, 0, 0)
	if again := r.attached(t, "b", n.newNetns("b")); again.Lease.NodeLocal != rec.Lease.NodeLocal {
		t.Errorf("an address that no pod had is not handed out again, but %s", again.Lease.NodeLocal)
	}
}
