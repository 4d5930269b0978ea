//go:build guest && e2e

package egress

import (
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/lab/network/site"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// changeSteps are the steps of a change of a running pod's egress at which a daemon may be killed.
var changeSteps = []string{"daemon.egress.recorded", "daemon.egress.applied", "daemon.egress.changed"}

// killAtChanges has the daemon of a pod killed with -9 at each step of a change of what the pod has, the
// changes drawn by a seed. The daemon that starts then finishes it.
func killAtChanges(s *scene, named, _ *node.Pod) {
	seed := uint64(time.Now().UnixNano())
	s.t.Logf("the seed is %d", seed)
	dice := rand.New(rand.NewPCG(seed, 0))
	at := s.lab.Nodes()[0]
	both := []string{site.OutsideHost.String() + "/32", site.OutsideHost6.String() + "/128"}
	changes := []struct {
		what   string
		change change
		seen   func()
	}{
		{"one destination", func(e *v1alpha1.EgressSpec) { e.Destinations = both[:1] }, func() {
			s.byGateways(named, outside[0])
			s.asItself(named, outside[1])
		}},
		{"session affinity", func(e *v1alpha1.EgressSpec) { e.SessionAffinity = corev1.ServiceAffinityClientIP }, func() { s.ends(named, 1) }},
		{"source ports", func(e *v1alpha1.EgressSpec) { e.FouSourcePortAuto = true }, func() { s.byGateways(named, outside...) }},
		{"no permission", func(e *v1alpha1.EgressSpec) { e.AllowedNamespaces = nil }, func() {
			s.asItself(named, outside...)
			s.until("nothing of egress in pod "+named.Name, func() error { return nothingIn(named) })
		}},
	}
	as := s.read().Spec
	dice.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
	for i, step := range changeSteps {
		c := changes[i]
		s.t.Logf("killed at %s of a change to %s", step, c.what)
		harness.OK(s.t, at.Stop(harness.Patience))
		at.Env = map[string]string{failpoint.EnvVar: step + "=kill"}
		harness.OK(s.t, at.Start())
		died := at.Exited()
		s.edit(c.change)
		select {
		case <-died:
		case <-s.ctx().Done():
			at.Env = nil
			s.t.Fatalf("failpoint %s was never reached", step)
		}
		at.Env = nil
		harness.OK(s.t, at.Start())
		harness.Ready(s.t, at)
		c.seen()
		s.edit(func(e *v1alpha1.EgressSpec) { *e = *as.DeepCopy() })
		s.byGateways(named, outside...)
	}
}
