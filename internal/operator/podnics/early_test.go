package podnics

import (
	"errors"
	"testing"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/portfake"
)

// While the provider takes long to make a port, the daemon of the pod's node finds the
// PodNIC already, by which it can say what a pod waits for.
func TestNodeOfACallThatLasts(t *testing.T) {
	w := start(t, Options{})
	hold := make(chan struct{})
	w.Inject(portfake.Fault{Op: "Create", Times: 1, Hang: hold, Err: portfake.Err(vpcport.Transient)})
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
