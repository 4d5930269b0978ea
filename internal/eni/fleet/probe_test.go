package fleet

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/cloudfake"
)

// A permission that lacked is noticed by the first pod that comes to wait after
// it was given, and not by asking all the time.
func TestWaiterProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.cloud.Inject(cloudfake.Fault{Op: "CreateENI", Err: cloudfake.Err(cloud.Permission, "UnauthorizedOperation")})
		p := w.operator(w.cloud)
		n := p.set(t, w.objects[0], settings(0, 1))
		pass(20 * time.Second)
		start := func() {
			n.start()
			p.Kick(n.name)
		}
		before := w.cloud.Count("CreateENI")
		for range 100 { // pods that come to wait within 10 s
			start()
			pass(100 * time.Millisecond)
		}
		if got := w.cloud.Count("CreateENI") - before; got < 1 || got > 2 {
			t.Errorf("%d creates for a hundred pods in 10 s, want one or two", got)
		}
		pass(11 * time.Second)
		w.cloud.ClearFaults()
		start()
		pass(5 * time.Second)
		if with, _ := n.pods(); with == 0 {
			t.Errorf("no pod has an address 5 s after the permission was given and a pod came: %+v", n.last())
		}
		p.stop()
	})
}
