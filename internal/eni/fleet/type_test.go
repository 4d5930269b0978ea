package fleet

import (
	"testing"
	"testing/synctest"
	"time"
)

// Whoever writes the settings of a node may err, or lie, about its type: how many
// ENIs and addresses there may be is as the cloud says.
func TestLimitsAreThoseOfTheCloud(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2) // of m5.xlarge
		p := w.operator(w.cloud)
		lie, unknown := settings(0, 60), settings(0, 60)
		lie.InstanceType, unknown.InstanceType = "m5.4xlarge", "z9.none"
		for i, s := range []*writer{p.set(t, w.objects[0], lie), p.set(t, w.objects[1], unknown)} {
			pass(30 * time.Second)
			s.mu.Lock()
			got := s.inv
			s.mu.Unlock()
			if st := s.last(); st.InstanceType != "m5.xlarge" || st.LastError != "" || !st.AtCapacity {
				t.Errorf("%d: status %+v", i, st)
			}
			if got.InstanceType != "m5.xlarge" || got.Limits.MaxENIs != 4 || len(got.ENIs) > 4 || s.available() > 4*14 {
				t.Errorf("%d: %s with %d ENIs and %d addresses", i, got.InstanceType, len(got.ENIs), s.available())
			}
		}
		p.stop()
		w.agree()
	})
}
