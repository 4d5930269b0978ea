package fleet

import (
	"testing"
	"time"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni"
)

// One collector for the whole fleet deletes what vanished instances left, and
// nothing of another cluster.
func TestOrphansAreCollected(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		orphan := func(cluster, instance string) {
			t.Helper()
			made := time.Now().Add(-24 * time.Hour) // as anybody may write
			if _, err := w.cloud.CreateENI(t.Context(), cloud.CreateENI{SubnetID: "subnet-home", Description: eni.Description(instance), Tags: map[string]string{
				eni.TagCluster: cluster, eni.TagOwner: eni.Owner, eni.TagInstanceID: instance, eni.TagCreatedAt: made.UTC().Format(time.RFC3339),
			}}); err != nil {
				t.Fatal(err)
			}
		}
		orphan("test", "i-gone")
		orphan("other", "i-gone")
		p := w.operator(w.cloud)
		p.set(t, w.objects[0], settings(0, 8))
		left := func() (n int) {
			for _, e := range w.cloud.Truth() {
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
		if n := w.cloud.Count("Instances"); n != 2 {
			t.Errorf("asked %d times for instances, want once for the type of the fleet's, and once for the vanished one", n)
		}
	})
}
