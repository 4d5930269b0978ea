package daemon

import (
	"testing"
	"time"
)

// The address that a pod had last is not the first to be handed out after a
// restart, also when it has cooled long since.
func TestLongestFreeFirstAfterARestart(t *testing.T) {
	for name, between := range map[string]struct {
		ended bool // the daemon saw the end of cooling
	}{"cooled before the restart": {true}, "cooled while no daemon ran": {false}} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "10.0.0.5", "10.0.0.6", "10.0.0.7")
			r := n.restart(nil)
			first := mustAdd(t, r, "a", n.newNetns("a"))
			must(t, r.attachments.del(within(t), keyFor("a")))
			if between.ended {
				waitFor(t, func() bool { // who removes the record may not have begun to wait yet
					n.clock.Advance(10 * time.Second)
					return len(r.Store.CoolingRecords()) == 0
				})
			} else {
				r.stop()
				r = nil
				n.clock.Advance(32 * time.Second)
			}
			r = n.restart(r)
			if len(r.Store.CoolingRecords()) != 0 {
				t.Errorf("cooling %v", r.Store.CoolingRecords())
			}
			var got []string
			for _, name := range []string{"b", "c", "d"} {
				mustAdd(t, r, name, n.newNetns(name))
				rec, _ := r.Store.Get(keyFor(name))
				got = append(got, rec.Lease.Addrs()[0].String())
			}
			if got[0] != "10.0.0.6" || got[1] != "10.0.0.7" || got[2] != "10.0.0.5" {
				t.Errorf("handed out %v, the first pod had %v", got, first)
			}
		})
	}
}
