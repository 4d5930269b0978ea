package networkpolicy

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/policy"
)

// podKernel is a pod's table in memory.
type podKernel struct {
	kernel
	removed, closed int
}

func (k *podKernel) Remove() error {
	k.removed++
	return nil
}

func (k *podKernel) Close() error {
	k.closed++
	return nil
}

// Policies of a pod whose packets do not pass the node's IP stack are in force in its network namespace, and nowhere else.
// One such pod does not hold up others.
func TestPoliciesInsidePods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &kernel{}
		opened := map[string]*podKernel{}
		var openErr error
		e := New(Options{
			Kernel: node, Dir: t.TempDir(), Clock: clock.Real{}, Log: slog.New(slog.DiscardHandler), Interval: time.Hour,
			OpenInside: func(i Inside) (PodKernel, Denials, error) {
				if openErr != nil {
					return nil, nil, openErr
				}
				opened[i.Netns] = &podKernel{}
				return opened[i.Netns], nil, nil
			},
		})
		alone := &policy.Policy{Ref: policy.Ref{Namespace: "default", Name: "alone"}, Tier: policy.Namespaced, Isolates: [2]bool{true, false}}
		choose := func(version uint64, names ...string) {
			u := &policy.Update{Version: version, Whole: true, Pods: map[policy.PodName]*policy.Selected{}, Policies: map[policy.Ref]*policy.Policy{alone.Ref: alone}}
			for _, name := range []string{"a", "b", "c"} {
				s := &policy.Selected{UID: "uid-of-" + name}
				if slices.Contains(names, name) {
					s.Policies = []policy.Ref{alone.Ref}
				}
				u.Pods[policy.PodName{Namespace: "default", Name: name}] = s
			}
			e.take(1, u)
		}
		choose(1, "a", "c")
		step := func() error {
			t.Helper()
			<-e.dirty
			return e.apply()
		}
		set := func(p Pod) error {
			t.Helper()
			done := make(chan error)
			go func() { done <- e.Set(t.Context(), p.Name, p) }()
			synctest.Wait()
			_ = step()
			return <-done
		}
		a, b, c := running("a", "10.0.0.1"), running("b", "10.0.0.2"), running("c", "10.0.0.3")
		a.Inside = &Inside{Netns: "a", Links: []string{"eth0"}, Only: true}
		b.Inside = &Inside{Netns: "b", Links: []string{"eth1"}}
		must(t, set(a))
		must(t, set(b))
		must(t, set(c))
		inPod := opened["a"]
		if len(inPod.pods) != 1 || !slices.Equal(inPod.pods[0].Addrs, a.Addrs) || len(inPod.pods[0].Policies) != 1 {
			t.Errorf("the pod's own table has %+v", inPod.pods)
		}
		for _, p := range node.pods {
			if slices.Contains(p.Addrs, a.Addrs[0]) {
				t.Error("the node's table has a pod whose packets it does not see")
			}
		}
		if b := opened["b"]; b.pods != nil || b.removed != 1 || b.closed != 1 {
			t.Errorf("the table of a pod without policies: %+v", b)
		}

		inPod.pods, inPod.sets = nil, nil
		e.suspect(interval)
		must(t, step())
		if len(inPod.pods) != 1 {
			t.Error("a pod's table that was removed is not restored")
		}

		openErr = errors.New("EPERM")
		choose(2, "a", "b", "c")
		if err := set(b); !errors.Is(err, openErr) {
			t.Errorf("the pod's policies are not in force, and Set returns %v", err)
		}
		if err := set(c); err != nil {
			t.Errorf("another pod has to wait: %v", err)
		}
		openErr = rtnl.ErrNoNetns
		must(t, set(b)) // it is gone
		openErr = nil
		must(t, set(b))
		if len(opened["b"].pods) != 1 {
			t.Error("the policies are not in force after an error")
		}

		e.Remove("a")
		must(t, step())
		if inPod.removed != 1 || inPod.closed != 1 {
			t.Errorf("the table of a pod that is gone: %+v", inPod)
		}
		e.insides.closeAll()
		if b := opened["b"]; b.removed != 0 || b.closed != 1 {
			t.Errorf("after the end of the process: %+v", b)
		}
	})
}
