package nodenetwork

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/cloud"
)

// asked is a node of a controller without an API server, whose cloud says what
// fl does.
func asked(fl *script) *node {
	c := &Controller{
		o: Options{Fleet: fl, Clock: clock.Real{}, Logger: slog.New(slog.DiscardHandler)}, fleet: fl,
		nodes: map[string]*node{}, claims: map[string]map[string]*node{}, recreations: map[string]recreation{},
	}
	n := c.newNode(objectOf("node-1", instance), false)
	c.nodes[n.name] = n
	return n
}

// An answer of EC2 without the instance may be of a part that trails the others.
func TestOneAnswerWithoutTheInstanceProvesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fl := newScript()
		n, bare := asked(fl), &corev1.Node{}
		look := func(want string) time.Duration {
			t.Helper()
			n.identity(t.Context(), bare) // asks, if that is due
			synctest.Wait()
			if why := n.identity(t.Context(), bare); why.reason != want {
				t.Fatalf("got %+v, want %q", why, want)
			}
			return n.wake(n.c.now())
		}
		if wait := look(reasonNotProved); wait != absentRetry || !n.liveness.vanishedAt.IsZero() {
			t.Errorf("after one answer: asked again after %v, vanished %v", wait, n.liveness.vanishedAt)
		}
		time.Sleep(absentRetry) //nolint:forbidigo // virtual time
		if wait := look(reasonInstanceGone); wait != proofRetry || n.liveness.vanishedAt.IsZero() {
			t.Errorf("after two answers: asked again after %v, vanished %v", wait, n.liveness.vanishedAt)
		}
		fl.says[instance] = cloud.Instance{ID: instance, State: "running", DNSName: n.name}
		time.Sleep(proofRetry) //nolint:forbidigo // virtual time
		if look(""); !n.liveness.vanishedAt.IsZero() {
			t.Error("it is there, and counts as vanished")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		fl := newScript()
		n := asked(fl)
		fl.says[instance] = cloud.Instance{ID: instance, State: "terminated"}
		n.identity(t.Context(), &corev1.Node{})
		synctest.Wait()
		if why := n.identity(t.Context(), &corev1.Node{}); why.reason != reasonInstanceGone || n.liveness.vanishedAt.IsZero() {
			t.Errorf("terminated, by EC2's own words: %+v", why)
		}
	})
}

// A Node that is made anew without its provider ID, all at once: EC2 is asked
// while the fleet stops, and asked again if that answer finds another node.
func TestProofIsAskedForAfterTheFleetStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fl := newScript()
		n, bare := asked(fl), &corev1.Node{}
		fl.says[instance] = cloud.Instance{ID: instance, State: "running", DNSName: n.name}
		if why := n.identity(t.Context(), bare); why.reason != reasonNotProved {
			t.Fatalf("not asked yet: %+v", why)
		}
		next := n.c.suspend(n)
		synctest.Wait()
		next.identity(t.Context(), bare)
		synctest.Wait()
		if why := next.identity(t.Context(), bare); why != (refusal{}) {
			t.Errorf("EC2 names the Node, and: %+v", why)
		}
	})
}
