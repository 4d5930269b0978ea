package fleet

import (
	"maps"
	"net/netip"
	"testing"
	"time"
)

// A process is stopped between recording a release and its call, and goes on after another process took
// over the node, where many pods wait. The other process has asked the cloud itself by then, and no pod
// got the released addresses.
func TestCallAfterAnotherTookOver(t *testing.T) {
	for name, pods := range map[string]int{"addresses": 6, "an ENI": 20} { // an m5.xlarge's ENI has room for 14
		t.Run(name, func(t *testing.T) {
			bubble(t, 1, func(t *testing.T, w *world) {
				goOn := make(chan struct{})
				o := w.operator(&api{Cloud: w.cloud, taking: goOn}).set(t, w.objects[0], settings(0, 8))
				o.run(pods)
				pass(30 * time.Second)
				for range pods {
					o.end()
				}
				o.run(0)
				pass(2 * minute)
				leaving, enis := o.leaves()
				if len(leaving)+len(enis) == 0 || w.cloud.Front.Count("UnassignAddresses", "DetachENI") != 0 {
					t.Fatalf("leaving: %v, %v; %d calls", leaving, enis, w.cloud.Front.Count("UnassignAddresses", "DetachENI"))
				}
				before := w.attachments()
				two := w.operator(w.cloud).set(t, o.object, settings(0, 8))
				pass(10 * time.Second)
				two.run(25)
				for range 5 {
					pass(minute)
					for a := range leaving {
						if o.has(a) {
							t.Errorf("a pod has %v, which is on its way out", a)
						}
					}
					now := w.attachments()
					for _, e := range o.inventory().ENIs {
						if enis[e.ID] && now[e.ID] == before[e.ID] {
							t.Errorf("%s is published, which is on its way out", e.ID)
						}
					}
				}
				if w.cloud.Front.Count("UnassignAddresses", "DetachENI") == 0 {
					t.Error("the other did not go on")
				}
				close(goOn)
				pass(15 * minute)
				if _, waiting := o.pods(); waiting > 0 {
					t.Errorf("%d pods wait", waiting)
				}
			})
		})
	}
}

// attachments returns the attachments of all ENIs.
func (w *world) attachments() map[string]string {
	out := map[string]string{}
	for _, e := range w.cloud.State.Truth() {
		if e.Attachment != nil {
			out[e.ID] = e.Attachment.ID
		}
	}
	return out
}

// leaves returns the releases that are recorded.
func (o *object) leaves() (map[netip.Addr]string, map[string]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.committed), maps.Clone(o.detaching)
}
