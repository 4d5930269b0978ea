package fleet

import (
	"testing"
	"testing/synctest"
	"time"
)

// An ENI that somebody took off the instance is no longer published once the node
// was observed after Invalidate, long before the next full listing.
func TestInvalidateFindsWhatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.operator(w.cloud)
		defer p.stop()
		n := p.set(t, w.objects[0], settings(0, 4))
		n.start()
		p.Kick(n.name)
		pass(130 * time.Second)
		looked := 0
		for _, e := range w.cloud.Truth() {
			if e.Attachment == nil || e.Attachment.DeviceIndex == 0 {
				continue
			}
			looked++
			if err := w.cloud.DetachENI(t.Context(), e.Attachment.ID); err != nil {
				t.Fatal(err)
			}
			pass(3 * time.Second)
			if err := w.cloud.DeleteENI(t.Context(), e.ID); err != nil {
				t.Fatal(err)
			}
			p.Invalidate(n.name)
			p.Kick(n.name)
			pass(5 * time.Second)
			w.objects[0].mu.Lock()
			for _, x := range w.objects[0].inv.ENIs {
				if x.ID == e.ID {
					t.Errorf("%s is published still", e.ID)
				}
			}
			w.objects[0].mu.Unlock()
		}
		if looked == 0 {
			t.Fatal("the node has no ENI to take")
		}
	})
}
