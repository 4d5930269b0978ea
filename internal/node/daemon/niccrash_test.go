package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/node/attachment"
)

// portPods are pods with two NICs: beside an address, without an address, and with a branch that the node
// routes to. Their names are short, because they become part of a socket path.
var portPods = map[string]struct {
	addrs []string
	nics  []attachment.NIC
}{
	"beside": {[]string{"10.0.0.5"}, []attachment.NIC{testNIC("eth1", "p-1"), testNIC("eth2", "p-2")}},
	"branch": {[]string{"10.0.0.5"}, []attachment.NIC{testBranch("p-1"), testNIC("eth1", "p-2")}},
	"alone":  {nil, []attachment.NIC{testNIC("eth0", "p-1"), testNIC("eth1", "p-2")}},
}

// startPorts starts a daemon for a pod with these NICs.
func (n *node) startPorts(nics []attachment.NIC) *running {
	n.t.Helper()
	r := n.restart(nil)
	r.source.Nothing = len(n.addrs) == 0
	r.nics.bind("pod-a", nics...)
	if r.egress != nil {
		r.egress.says("pod-a", testEgress("nat"))
	}
	return r
}

// wantAllPlugged asserts that exactly the recorded NICs are plugged, and that all records are
// ready.
func (n *node) wantAllPlugged(t *testing.T, r *running, ports ...string) {
	t.Helper()
	n.board.want(t, ports...)
	records := r.Store.Records()
	if len(ports) == 0 && len(records) > 0 || len(ports) > 0 && len(records) != 1 {
		t.Errorf("records = %v, plugged ports = %v", records, ports)
	}
	for _, rec := range records {
		if rec.State != attachment.Ready {
			t.Errorf("%s is %s, want ready", rec.Key, rec.State)
		}
	}
	links := 0
	for _, rec := range records { // records with a lease
		links += len(rec.Lease.Addrs())
	}
	n.wantKernel(t, links, links)
	if n.tunnels != nil {
		n.tunnels.settles(t, "internet/nat")
	}
}

// A daemon is killed at each step of an ADD, its rollback and a DEL of a pod with NICs and egress. Its successor
// restores exactly the state of the ready records, and the runtime's next call succeeds.
func TestCrashesWithParts(t *testing.T) {
	newNode := func(t *testing.T, addrs []string) *node {
		n := newPortNode(t, addrs...)
		n.tunnels = newTunnels()
		return n
	}
	add := []string{
		"daemon.add.leased", "daemon.add.recorded", "daemon.nics.plugged=1", "daemon.nics.plugged=2",
		"daemon.egress.applied", "daemon.add.wired", "daemon.nics.active", "daemon.add.ready",
	}
	undo := []string{"daemon.egress.cleared", "daemon.nics.unplugged", "daemon.undo.detached", "daemon.undo.reaped", "daemon.undo.unrecorded"}
	del := []string{"daemon.del.marked", "daemon.del.cooling", "daemon.egress.cleared", "daemon.nics.unplugged", "daemon.del.detached", "daemon.del.unrecorded", "daemon.del.released"}
	for name, pod := range portPods {
		t.Run(name, func(t *testing.T) {
			for _, point := range add {
				t.Run(point, func(t *testing.T) {
					n := newNode(t, pod.addrs)
					n.crash(t, point, pod.nics, (*running).addTo)
					r := n.startPorts(pod.nics)
					if point == "daemon.add.ready" {
						n.wantAllPlugged(t, r, "p-1", "p-2")
					} else {
						n.wantAllPlugged(t, r)
					}
					n.lives(t, r)
				})
			}
			for _, point := range undo { // equal names would put a # into a socket path
				t.Run("undo-"+point, func(t *testing.T) {
					n := newNode(t, pod.addrs)
					n.crash(t, point, pod.nics, func(r *running, rec attachment.Record) error {
						broken, err := failpoint.Set("daemon.nics.active=error@1," + point + "=error@1")
						must(t, err)
						defer broken()
						if rec, err = r.attachments.trySetUp(t.Context(), rec, time.Now().Add(time.Minute)); !errors.Is(err, failpoint.ErrHit) {
							t.Fatalf("trySetUp() = %v, want failpoint.ErrHit", err)
						}
						return r.attachments.undo(t.Context(), rec)
					})
					r := n.startPorts(pod.nics)
					n.wantAllPlugged(t, r)
					n.lives(t, r)
				})
			}
			for _, point := range del {
				t.Run("del-"+point, func(t *testing.T) {
					n := newNode(t, pod.addrs)
					r := n.startPorts(pod.nics)
					mustAdd(t, r, "a", n.newNetns("a"))
					r.stop()
					n.crash(t, point, pod.nics, func(r *running, rec attachment.Record) error { return r.attachments.del(t.Context(), rec.Key) })
					r = n.startPorts(pod.nics)
					n.wantAllPlugged(t, r)
					mustDel(t, r, "a") // the runtime retries, because it got no reply
					n.clock.Advance(31 * time.Second)
					n.lives(t, r)
				})
			}
		})
	}
}

// addTo completes an ADD whose record exists.
func (r *running) addTo(rec attachment.Record) error {
	err := r.attachments.begin(context.Background(), rec)
	if err == nil {
		_, err = r.attachments.trySetUp(context.Background(), rec, time.Now().Add(time.Minute))
	}
	return err
}

// crash leaves a node in the state of a daemon that was killed at a failpoint. point may end in "=" and the
// number of the hit.
func (n *node) crash(t *testing.T, point string, nics []attachment.NIC, do func(*running, attachment.Record) error) {
	t.Helper()
	r := n.assemble()
	r.source.Nothing = len(n.addrs) == 0
	if r.nics != nil {
		r.nics.bind("pod-a", nics...)
		if r.egress != nil {
			r.egress.says("pod-a", testEgress("nat"))
		}
	}
	rec := recordOf("a", attachment.Lease{})
	rec.Pod = attachment.Pod{Namespace: "default", Name: "pod-a", UID: "uid-a"}
	if now, ok := r.Store.Get(rec.Key); ok {
		rec = now
		if !rec.Lease.Empty() {
			must(t, r.Source.Restore(attachment.Request{Key: rec.Key}, rec.Lease))
		}
	} else {
		ns, err := netnsOf(r.attachments.inspect, n.newNetns("a"))
		must(t, err)
		rec, _, err = r.attachments.acquirer.acquire(t.Context(), rec, attachment.PodOptions{})
		must(t, err)
		rec.Netns = ns
		must(t, r.Store.Put(rec))
	}
	name, hit := point, 1
	if i := len(point) - 2; point[i] == '=' {
		name, hit = point[:i], int(point[i+1]-'0')
	}
	ctx, end := context.WithCancel(t.Context())
	var reaper sync.WaitGroup
	reaper.Go(func() { r.reaper.run(ctx) })
	defer reaper.Wait()
	defer end()
	defer n.tick()()
	restore, err := failpoint.Set(fmt.Sprintf("%s=error@%d", name, hit))
	must(t, err)
	defer restore()
	if err := do(r, rec); !errors.Is(err, failpoint.ErrHit) {
		t.Fatalf("crashing call = %v, want failpoint.ErrHit", err)
	}
}

// lives adds the pod and deletes it.
func (n *node) lives(t *testing.T, r *running) {
	t.Helper()
	defer n.tick()()
	mustAdd(t, r, "a", "/run/netns/a")
	n.wantAllPlugged(t, r, "p-1", "p-2")
	mustDel(t, r, "a")
	waitFor(t, func() bool { return r.reaper.count() == 0 })
	n.wantAllPlugged(t, r)
}
