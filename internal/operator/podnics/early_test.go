package podnics

import (
	"errors"
	"testing"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/portfake"
)

func TestUnplacedFor(t *testing.T) {
	since := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name          string
		placed        time.Duration // after since; below 0: never
		now           time.Duration
		atLeast, most time.Duration
	}{
		{"at first", -1, 0, quiet, quiet},
		{"nobody gets a node", -1, quiet, 0, 0},
		{"others got one before", 0, quiet / 2, quiet / 2, quiet / 2},
		{"others get one", quiet, quiet, quiet, quiet},
		{"others get one for long", 20 * time.Second, 20 * time.Second, quiet, 10 * time.Second},
		{"others got one, and no more", 20 * time.Second, 20*time.Second + quiet, 0, 0},
		{"for longer than a pod waits", unplacedMost - time.Millisecond, unplacedMost - time.Millisecond, time.Millisecond, time.Millisecond},
		{"it waited long enough", unplacedMost, unplacedMost, 0, 0},
	} {
		var placed time.Time
		if tt.placed >= 0 {
			placed = since.Add(tt.placed)
		}
		if got := unplacedFor(since, placed, since.Add(tt.now)); got < tt.atLeast || got > tt.most {
			t.Errorf("%s: %v, want %v to %v", tt.name, got, tt.atLeast, tt.most)
		}
	}
}

// While the provider takes long to make a port, the daemon of the pod's node finds the
// PodNIC already, by which it can say what a pod waits for.
func TestNodeOfACallThatLasts(t *testing.T) {
	w := start(t, Options{})
	hold := make(chan struct{})
	w.Front.Inject(portfake.Fault{Op: "Create", Times: 1, Hang: hold, Err: portfake.Err(vpcport.Transient)})
	w.pod("slow", "")
	w.schedule("slow", "node-a")
	o := w.awaitNIC("slow", "eth0", "names its node", func(o *v1alpha1.PodNIC) error {
		if o.Status.NodeName != "node-a" {
			return errors.New("it does not")
		}
		return nil
	})
	if o.Status.PortID != "" || o.Status.Phase != v1alpha1.PhasePending {
		t.Errorf("while the port is made: %+v", o.Status)
	}
	close(hold)
	w.awaitNIC("slow", "eth0", "is bound", boundAt("node-a"))
}
