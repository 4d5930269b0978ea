//go:build guest && e2e

package egress

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestNothingLeaksWithoutGateways scales an Egress to none, under traffic, and up again: meanwhile nothing leaves by
// the pods' own way, and the condition Available says why; then connections work again.
func TestNothingLeaksWithoutGateways(t *testing.T) {
	s := tell(t, "gone")
	nodes := s.lab.Nodes()
	a, b := s.client(nodes[0], "one"), s.client(nodes[1], "other")
	s.reaches(a, nil)
	s.reaches(b, nil)
	floods := []*flood{s.pour(a, 200*time.Millisecond, time.Second), s.pour(b, 200*time.Millisecond, time.Second)}

	s.edit(replicas(0))
	harness.Eventually(t, harness.Patience, "the Egress is not available", func() error {
		e, err := s.lab.Kube.Egress(t.Context(), s.key)
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.ConditionAvailable)
		if c == nil || c.Status != "False" {
			return fmt.Errorf("its condition is %v", c)
		}
		return nil
	})
	for _, g := range s.lab.Gateways(s.key) {
		harness.OK(t, g.Kill()) // at once, before its connections have ended
	}
	s.gateways(0)
	for _, p := range []*node.Pod{a, b} {
		harness.Eventually(t, harness.Patience, "destinations are unreachable from pod "+p.Name, func() error {
			for _, to := range outside {
				if as, err := seenAs(t.Context(), p, "tcp", to, time.Second); err == nil {
					return fmt.Errorf("it is seen as %s", as)
				}
			}
			return nil
		})
	}
	for _, f := range floods {
		f.poured(s, 10)
	}
	began := time.Now()
	s.edit(replicas(2))
	by := s.gateways(2)
	s.reaches(a, by)
	s.reaches(b, by)
	t.Logf("connections work %s after the Egress was scaled up", time.Since(began))
	for _, f := range floods {
		f.end()
		if len(f.leaked) > 0 {
			t.Errorf("%d of %d connections left by the pod's own way, first as %s", len(f.leaked), f.begun, f.leaked[0])
		}
	}
}
