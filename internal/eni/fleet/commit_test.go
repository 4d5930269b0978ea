package fleet

import (
	"context"
	"maps"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/cloud/cloudfake"
)

// stopped is the cloud as a process sees it that is stopped right before its
// first call to take addresses, or an ENI, and goes on when go ends.
type stopped struct {
	*cloudfake.Cloud
	on chan struct{}
}

func (s *stopped) UnassignAddresses(ctx context.Context, id string, things []netip.Prefix) error {
	<-s.on
	return s.Cloud.UnassignAddresses(context.WithoutCancel(ctx), id, things)
}

func (s *stopped) DetachENI(ctx context.Context, id string) error {
	<-s.on
	return s.Cloud.DetachENI(context.WithoutCancel(ctx), id)
}

// A process that was stopped between its record that something leaves and the
// call goes on when another works for the node, and many pods wait there: that
// one has asked the cloud itself by then, and no pod got what leaves.
func TestCallAfterAnotherTookOver(t *testing.T) {
	for name, pods := range map[string]int{"addresses": 6, "an ENI": 20} { // an m5.xlarge's ENI has room for 14
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1)
				cl := &stopped{Cloud: w.cloud, on: make(chan struct{})}
				one, o := w.operator(cl), w.objects[0]
				one.set(t, o, settings(0, 8))
				for range pods {
					o.start()
				}
				one.Kick(o.name)
				pass(30 * time.Second)
				for range pods {
					o.end()
				}
				one.Kick(o.name)
				pass(2 * minute)
				leaving, enis := o.leaves()
				if len(leaving)+len(enis) == 0 || w.cloud.Count("UnassignAddresses", "DetachENI") != 0 {
					t.Fatalf("leaving: %v, %v; %d calls", leaving, enis, w.cloud.Count("UnassignAddresses", "DetachENI"))
				}
				before := w.attachments()
				two := w.operator(w.cloud)
				two.set(t, o, settings(0, 8))
				pass(10 * time.Second)
				for range 25 {
					o.start()
				}
				two.Kick(o.name)
				for range 5 {
					pass(minute)
					now := w.attachments()
					o.mu.Lock()
					for a := range o.used {
						if leaving[a] != "" {
							t.Errorf("a pod has %v, which is on its way out", a)
						}
					}
					for _, e := range o.inv.ENIs {
						if enis[e.ID] && now[e.ID] == before[e.ID] {
							t.Errorf("%s is published, which is on its way out", e.ID)
						}
					}
					o.mu.Unlock()
				}
				if w.cloud.Count("UnassignAddresses", "DetachENI") == 0 {
					t.Error("the other did not go on")
				}
				close(cl.on)
				pass(15 * minute)
				one.stop()
				two.stop()
				w.agree()
				if _, waiting := o.pods(); waiting > 0 {
					t.Errorf("%d pods wait", waiting)
				}
			})
		})
	}
}

// attachments are those of all ENIs.
func (w *world) attachments() map[string]string {
	out := map[string]string{}
	for _, e := range w.cloud.Truth() {
		if e.Attachment != nil {
			out[e.ID] = e.Attachment.ID
		}
	}
	return out
}

// leaves is what was recorded as about to leave.
func (o *object) leaves() (map[netip.Addr]string, map[string]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.committed), maps.Clone(o.detaching)
}
