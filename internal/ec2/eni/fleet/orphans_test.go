package fleet

import (
	"testing"
	"time"
)

// One collector for the whole fleet deletes the orphans of its cluster, and of no other.
func TestOrphansAreCollected(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		long := time.Now().Add(-24 * time.Hour) // as anybody may write
		w.leftBehind("test", "i-gone", long)
		w.leftBehind("other", "i-gone", long)
		p := w.operator(w.cloud)
		p.set(t, w.objects[0], settings(0, 8))
		left := func() (n int) {
			for _, e := range w.cloud.State.Truth() {
				if e.Attachment == nil {
					n++
				}
			}
			return n
		}
		pass(14 * minute)
		if left() != 2 {
			t.Errorf("%d are left before they are old enough, want both", left())
		}
		pass(20 * minute)
		if left() != 1 {
			t.Errorf("%d are left, want the other cluster's", left())
		}
		if n := w.cloud.Front.Count("Instances"); n != 2 {
			t.Errorf("asked %d times for instances, want once for the type of the fleet's, and once for the vanished one", n)
		}
	})
}
