package daemon

import (
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"google.golang.org/grpc"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/cnierror"
	"github.com/berthnet/berth/internal/rpc"
)

func TestDelVariants(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	r := n.restart(nil)
	defer n.tick()()
	mustDel(t, r, "never-seen")
	ns := n.newNetns("a")
	mustAdd(t, r, "a", ns)
	n.removeNetns(ns)
	mustDel(t, r, "a")
	mustDel(t, r, "a")
	if len(r.Store.Records()) != 0 {
		t.Errorf("records %v", r.Store.Records())
	}
	must(t, r.reaper.await(within(t), hostLinkName(keyFor("a")), attachment.Netns{}))
	n.wantKernel(t, 0, 0)
}

func TestGCReleasesOnlyItsNetwork(t *testing.T) {
	n := newNode(t, "10.0.0.5", "10.0.0.6", "10.0.0.7")
	r := n.start()
	mustAdd(t, r, "keep", n.newNetns("keep"))
	mustAdd(t, r, "stale", n.newNetns("stale"))
	other := addOf("other", n.newNetns("other"))
	other.Attachment.Network = "another"
	if _, err := r.client.Add(within(t), other); err != nil {
		t.Fatal(err)
	}
	n.clock.Advance(time.Second)
	reply, err := r.client.GC(within(t), &rpc.GCRequest{Network: "berth", Valid: []*rpc.Attachment{{ContainerId: "keep", IfName: "eth0"}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := reply.GetReleased(); len(got) != 1 || got[0].GetContainerId() != "stale" {
		t.Errorf("released %v, want stale", got)
	}
	if len(r.Store.Records()) != 2 {
		t.Errorf("records %v", r.Store.Records())
	}
}

func TestCheck(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	r := n.start()
	ns := n.newNetns("a")
	check := func(netns string, addrs ...string) error {
		_, err := r.client.Check(within(t), &rpc.CheckRequest{Attachment: addOf("a", "").Attachment, Netns: netns, Addresses: addrs}, grpc.WaitForReady(true))
		return err
	}
	wantFailure(t, check(ns), types.ErrUnknownContainer)
	mustAdd(t, r, "a", ns)
	if err := check(ns, "10.0.0.5/32"); err != nil {
		t.Error(err)
	}
	wantFailure(t, check(ns, "10.0.0.9/32"), cnierror.CodeMismatch)
	wantFailure(t, check(n.newNetns("b")), cnierror.CodeMismatch)
	n.kernel.dropRoutes()
	wantFailure(t, check(ns), cnierror.CodeMismatch)
}
