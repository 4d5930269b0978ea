package fleet

import (
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/berthnet/berth/internal/cloud"
)

// Whatever state and type EC2 names, back and forth, pods keep their addresses,
// and get more once it tells the truth.
func TestInstancesThatCannotBeTrue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		var lies atomic.Int32
		truth := &api{Cloud: w.cloud}
		liar := &api{Cloud: w.cloud}
		states := []string{"terminated", "running", "stopped", "shutting-down", "nonsense", "pending", "stopping"}
		types := []string{"t3.small", "m5.4xlarge", "nonsense", "", "c5.large"}
		var on atomic.Bool
		on.Store(true)
		liar.instances = func(ids []string) ([]cloud.Instance, error) {
			list, err := truth.Cloud.Instances(t.Context(), ids)
			for i := range list {
				if n := int(lies.Add(1)); on.Load() {
					list[i].State, list[i].Type = states[n%len(states)], types[n%len(types)]
				}
			}
			return list, err
		}
		p := w.operator(liar)
		s := settings(0, 4)
		s.InstanceType = ""
		for _, o := range w.objects {
			p.set(t, o, s)
		}
		for i := range 120 {
			for _, n := range p.writers {
				if i < 20 {
					n.start()
				}
				p.Kick(n.name)
				p.CheckInstance(n.name)
			}
			pass(minute / 4)
			w.kept()
		}
		on.Store(false)
		for _, n := range p.writers {
			p.CheckInstance(n.name)
		}
		pass(10 * minute)
		for _, n := range p.writers {
			if with, waiting := n.pods(); with != 20 || waiting > 0 {
				t.Errorf("%s: %d pods have addresses, %d wait: %+v", n.name, with, waiting, n.last())
			}
		}
		if lies.Load() < 60 {
			t.Errorf("EC2 was asked %d times", lies.Load())
		}
		w.agree()
		p.stop()
	})
}

// kept checks that no pod lost its address.
func (w *world) kept() {
	w.t.Helper()
	for _, o := range w.objects {
		o.mu.Lock()
		for a := range o.used {
			found := false
			for _, e := range w.cloud.Truth() {
				for _, has := range e.Addresses {
					found = found || has == a && e.Attachment != nil && e.Attachment.InstanceID == o.instance
				}
			}
			if !found {
				w.t.Errorf("%s: a pod's address %v is not the node's any more", o.name, a)
			}
		}
		o.mu.Unlock()
	}
}
