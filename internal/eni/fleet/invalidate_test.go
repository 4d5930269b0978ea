package fleet

import (
	"slices"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/eni"
)

// An ENI that somebody took off the instance is no longer published once the node
// was observed after Invalidate, long before the next full listing.
func TestInvalidateFindsWhatIsGone(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		p := w.operator(w.cloud)
		n := p.set(t, w.objects[0], settings(0, 4))
		n.run(1)
		pass(130 * time.Second)
		w.apart = true // the pod's address is taken away
		looked := 0
		for _, e := range w.attached() {
			looked++
			if err := w.cloud.DetachENI(t.Context(), e.Attachment.ID); err != nil {
				t.Fatal(err)
			}
			pass(3 * time.Second)
			if err := w.cloud.DeleteENI(t.Context(), e.ID); err != nil {
				t.Fatal(err)
			}
			p.Invalidate(n.name)
			n.run(0)
			pass(5 * time.Second)
			if slices.ContainsFunc(n.inventory().ENIs, func(x eni.ENI) bool { return x.ID == e.ID }) {
				t.Errorf("%s is published still", e.ID)
			}
		}
		if looked == 0 {
			t.Fatal("the node has no ENI to take")
		}
	})
}
