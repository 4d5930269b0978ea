package nodenetworksupplier

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/nodenetwork"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/enisource"
)

const resource = "nodenetworks"

// observed is the node's NodeNetwork as last seen, and the reasons that prevent addresses from being served from it.
// It is safe for concurrent use.
type observed struct {
	cfg     *Config
	api     *kubeapi.Client
	mirror  *kubeapi.Mirror // whether the API is usable and the object was listed
	changed retry.Signal    // set when the object or the usability of the API has changed

	mu         sync.Mutex            // guards the fields below; never held during requests
	object     *v1alpha1.NodeNetwork // nil: none. Never changed in place
	createErr  error                 // why the object could not be created
	bad        []string              // invalid entries of the object
	reportedAt time.Time             // when the last report was accepted
}

func newObserved(cfg *Config, api *kubeapi.Client) *observed {
	s := &observed{cfg: cfg, api: api, changed: retry.NewSignal()}
	s.mirror = &kubeapi.Mirror{API: api, Sync: kubeapi.NewSync(), Log: cfg.Logger, Update: func(change func()) {
		change()
		s.changed.Set()
	}}
	return s
}

// latest returns the object, or nil if there is none, and whether the API server has reported
// its existence.
func (s *observed) latest() (o *v1alpha1.NodeNetwork, listed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.object, s.mirror.Sync.Listed(resource)
}

// update changes the state other than the object.
func (s *observed) update(change func(*observed)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// follow keeps the object up to date by a list and a watch of it alone, until ctx ends. Neither may
// start from an old state: a pod might get an address that has been unassigned since.
func (s *observed) follow(ctx context.Context) {
	own := s.api.Objects(resource, fields.OneTermEqualSelector("metadata.name", s.cfg.NodeName).String(),
		func() runtime.Object { return &v1alpha1.NodeNetworkList{} })
	kubeapi.Follow(ctx, resource, own, kubeapi.Handler[*v1alpha1.NodeNetwork]{
		Outcome: s.heard,
		Put:     s.put,
		Gone: func(n *v1alpha1.NodeNetwork) {
			s.observe(nil, func(have *v1alpha1.NodeNetwork) bool { return have != nil && have.UID == n.UID })
		},
		All: func(list []*v1alpha1.NodeNetwork) {
			var n *v1alpha1.NodeNetwork
			for _, o := range list {
				n = o
			}
			s.observe(n, func(*v1alpha1.NodeNetwork) bool { return true })
		},
	})
}

// put stores a state of the object unless a newer one is known: the watch may lag behind the reply to a
// report.
func (s *observed) put(n *v1alpha1.NodeNetwork) {
	s.observe(n, func(have *v1alpha1.NodeNetwork) bool { return have == nil || !nodenetwork.Newer(have, n) })
}

// observe stores a state of the object, nil if it does not exist, if accept agrees to replace the current
// one.
func (s *observed) observe(n *v1alpha1.NodeNetwork, accept func(have *v1alpha1.NodeNetwork) bool) {
	s.mu.Lock()
	if !accept(s.object) {
		s.mu.Unlock()
		return
	}
	s.object = n
	s.mirror.Sync.SetListed(true, resource)
	s.mu.Unlock()
	s.changed.Set()
}

// heard records the outcome of a request. The loop runs again when an outage begins or ends.
func (s *observed) heard(err error) { s.mirror.NoteOutcome(resource, err) }

// refresh reads the object without waiting for the watch, and reports whether the API server responded.
func (s *observed) refresh(ctx context.Context) bool {
	o := &v1alpha1.NodeNetwork{}
	err := s.api.Get(ctx, resource, s.cfg.NodeName, o)
	switch {
	case apierrors.IsNotFound(err):
		s.observe(nil, func(*v1alpha1.NodeNetwork) bool { return true })
	case err != nil:
		s.heard(err)
		return false
	default:
		s.put(o)
	}
	return true
}

// why returns the reason why waiting pods get no address: the problem nearest to this node first.
func (s *observed) why() *source.Exhausted {
	s.mu.Lock()
	defer s.mu.Unlock()
	if reason, message, err := s.trouble(); reason != "" {
		return &source.Exhausted{Reason: reason, Message: "no address is free: " + message, Err: err}
	}
	if c := meta.FindStatusCondition(s.object.Status.Conditions, v1alpha1.ConditionAtCapacity); c != nil && c.Status == "True" {
		return &source.Exhausted{Reason: source.ReasonOf(c.Reason), Message: "no address is free: " + c.Message}
	}
	if !s.reportedAt.IsZero() {
		return &source.Exhausted{Reason: enisource.Growing, Message: fmt.Sprintf(
			"no address is free yet: the demand was reported %v ago, but the operator has not assigned more; is berth-operator running?", s.cfg.Clock.Now().Sub(s.reportedAt).Round(100*time.Millisecond))}
	}
	return &source.Exhausted{Reason: enisource.Growing, Message: "no address is free yet: the operator has not assigned more; is berth-operator running?"}
}

// lastError returns the current problem, or "".
func (s *observed) lastError() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, message, _ := s.trouble(); message != "" {
		return message
	}
	if len(s.bad) > 0 {
		return fmt.Sprintf("NodeNetwork %s has invalid entries: %s", s.cfg.NodeName, strings.Join(s.bad, "; "))
	}
	return ""
}

// trouble returns the problem that keeps the operator's addresses from this node, or nil. s.mu is held.
func (s *observed) trouble() (reason, message string, err error) {
	name, o := s.cfg.NodeName, s.object
	if err := s.mirror.Sync.Err(); err != nil {
		reason, message = kubeapi.Advice(err)
		return reason, message, err
	}
	switch {
	case !s.mirror.Sync.Listed(resource):
		return "starting", "waiting for the API server to report the existence of NodeNetwork " + name, nil
	case s.createErr != nil:
		return "no-object", s.createErr.Error(), s.createErr
	case o == nil && s.cfg.Spec == nil:
		return "no-object", fmt.Sprintf("there is no NodeNetwork %s: create it, or let berthd do so by --auto-create-node-network", name), nil
	case o == nil:
		return "no-object", fmt.Sprintf("NodeNetwork %s is being created", name), nil
	case o.Spec.InstanceID != s.cfg.InstanceID:
		return "other-instance", fmt.Sprintf("NodeNetwork %s is of instance %s and this is %s: delete it, or let berthd replace it by --auto-create-node-network",
			name, o.Spec.InstanceID, s.cfg.InstanceID), nil
	}
	if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionDegraded); c != nil && c.Status == "True" && c.Reason != v1alpha1.ReasonLinkMissing {
		return source.ReasonOf(c.Reason), cmp.Or(c.Message, c.Reason), nil
	}
	if !reported(o) {
		return "no-operator", fmt.Sprintf("the operator has not reported on NodeNetwork %s yet: is berth-operator running?", name), nil
	}
	return "", "", nil
}
