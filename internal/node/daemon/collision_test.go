package daemon

import (
	"testing"

	"google.golang.org/grpc"

	"github.com/berthnet/berth/internal/node/daemon/cnierror"
)

// Two container IDs whose links have one name: the name has 60 bits of a hash, and
// such a pair is found in a minute by who may choose both. The one that comes late
// is refused, and the one that is there does not notice.
func TestContainersWhoseLinksHaveOneName(t *testing.T) {
	const first, second = "43ab58336120444", "bde7e43ba73ff85"
	n := newNode(t, "10.0.0.5", "10.0.0.6")
	key := keyFor(first)
	key.Network, key.IfName = "net", "eth0"
	late := key
	late.ContainerID = second
	if hostLinkName(key) != hostLinkName(late) {
		t.Fatalf("%s and %s: not the pair that it was", hostLinkName(key), hostLinkName(late))
	}
	r := n.restart(nil)
	defer n.tick()()
	a, b := n.newNetns("a"), n.newNetns("b")
	add := addOf(first, a)
	add.Attachment.Network, add.Attachment.IfName = "net", "eth0"
	if _, err := r.client.Add(within(t), add, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	links, routes := n.kernel.all.State()
	for range 2 {
		other := addOf(second, b)
		other.Attachment.Network, other.Attachment.IfName = "net", "eth0"
		r.refused(t, other, cnierror.CodeRecord)
		if err := r.attachments.del(within(t), late); err != nil {
			t.Errorf("DEL of the late one: %v", err)
		}
		waitFor(t, func() bool { return r.reaper.count() == 0 })
		if l, ro := n.kernel.all.State(); len(l) != len(links) || len(ro) != len(routes) {
			t.Fatalf("the first one has links %v and routes %v, had %v and %v", l, ro, links, routes)
		}
	}
	if err := r.attachments.check(within(t), key, a, nil); err != nil {
		t.Error(err)
	}
}
