package fleet

import (
	"testing"
	"time"

	"github.com/berthnet/berth/test/harness/check"
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
		check.Equal(t, left(), 2, "detached ENIs before they are old enough")
		pass(20 * minute)
		check.Equal(t, left(), 1, "detached ENIs")
		check.Equal(t, w.cloud.Front.Count("Instances"), 2, "calls for instances")
	})
}
