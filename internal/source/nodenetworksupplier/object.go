package nodenetworksupplier

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/nodenetwork"
	"github.com/berthnet/berth/internal/retry"
)

// creator creates the node's object, or replaces one of another instance. It belongs to the supplier's
// loop.
type creator struct {
	cfg      *Config
	api      *kubeapi.Client
	observed *observed
	unserved *stateLog
	retry    retry.Backoff
	replaced time.Time // time of the last deletion of another instance's object
}

const (
	firstAttempt = 500 * time.Millisecond
	lastAttempt  = 30 * time.Second
	// replacePause is the minimum time between two replacements, so that two daemons that were
	// given the same node name by mistake do not replace each other's object continuously.
	replacePause = time.Minute
)

// ensure creates the object if it does not exist (o is nil), or replaces one of another instance if the
// daemon is configured to. It returns the time of the next call; zero: when woken.
//
// The admission policies allow a daemon to delete an object only if the operator reports that it is
// useless: its instance is not the Node's, or no longer exists. Until then the daemon retries.
//
// Replacing is safe. The name is this node's, so this instance has replaced the other one. ENIs that
// the operator created for the other instance are found by their tags, not through this object. The Node, which
// the cloud's controller ties to an instance, must not contradict. Only the exact state of the object
// that was read is deleted: if anyone has written to it since, such as an administrator who corrected the
// instance, the object stays.
func (s *creator) ensure(ctx context.Context, o *v1alpha1.NodeNetwork) time.Time {
	step, what := s.create, "the object does not exist"
	if o != nil {
		step = func(ctx context.Context) error { return s.replace(ctx, o) }
		what = "the object is of instance " + o.Spec.InstanceID + ", which is not this one"
	}
	if s.cfg.Spec == nil {
		s.unserved.set(what + "; waiting for another, as --auto-create-node-network is off")
		return time.Time{}
	}
	b, now := &s.retry, s.cfg.Clock.Now()
	if b.Until.After(now) {
		return b.Until
	}
	err := step(ctx)
	if kubeapi.Cancelled(err) {
		return time.Time{}
	}
	s.observed.update(func(o *observed) { o.createErr = err })
	b.Fail(now, firstAttempt, lastAttempt) // even after a success, as a limit
	if err == nil {
		return time.Time{}
	}
	s.cfg.Logger.Warn("the object could not be created, will try again", "because", what, "err", err)
	return b.Until
}

// found ends the search for an object of this instance.
func (s *creator) found() {
	s.retry = retry.Backoff{}
	s.observed.update(func(o *observed) { o.createErr = nil })
}

// create creates the object. From then on users may edit its spec.
func (s *creator) create(ctx context.Context) error {
	n, err := s.getNode(ctx)
	if err != nil {
		return err
	}
	return s.createFor(ctx, n)
}

func (s *creator) createFor(ctx context.Context, n *node) error {
	o := &v1alpha1.NodeNetwork{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeNetwork"},
		ObjectMeta: metav1.ObjectMeta{Name: s.cfg.NodeName},
		Spec:       *s.cfg.Spec.DeepCopy(),
	}
	if n != nil {
		o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Metadata.Name, UID: n.Metadata.UID}}
	}
	if err := failpoint.Hit("nodenetwork.create.before"); err != nil {
		return err
	}
	got := &v1alpha1.NodeNetwork{}
	err := s.api.Create(ctx, resource, o, got)
	if apierrors.IsAlreadyExists(err) {
		s.observed.refresh(ctx)
		return nil
	}
	if err != nil {
		if !apierrors.IsInvalid(err) && !notAllowed(err) {
			s.observed.heard(err)
		}
		if apierrors.IsNotFound(err) {
			err = fmt.Errorf("the Kubernetes API lacks kinds of Berth's: apply deploy/chart: %w", err)
		}
		return fmt.Errorf("create NodeNetwork %s: %w", s.cfg.NodeName, err)
	}
	s.cfg.Logger.Info("created", "instance", got.Spec.InstanceID, "owner", n != nil)
	s.observed.observe(got, func(have *v1alpha1.NodeNetwork) bool { return have == nil })
	return failpoint.Hit("nodenetwork.create.after")
}

// notAllowed reports whether an admission policy rejected the object. In that case the API works, and the
// policy's message says what to change.
func notAllowed(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy")
}

// replace deletes an object of another instance and creates one of this instance.
func (s *creator) replace(ctx context.Context, o *v1alpha1.NodeNetwork) error {
	n, err := s.getNode(ctx)
	if err != nil {
		return err
	}
	id := ""
	if n != nil {
		id = nodenetwork.InstanceOf(n.Spec.ProviderID)
	}
	if id != "" && id != s.cfg.InstanceID {
		return fmt.Errorf("replace NodeNetwork %s, which is of %s: Node %s is of %s (spec.providerID) and this is %s: "+
			"is the node's name another's? else delete the Node, so that the kubelet registers anew",
			s.cfg.NodeName, o.Spec.InstanceID, s.cfg.NodeName, id, s.cfg.InstanceID)
	}
	if again := s.replaced.Add(replacePause); !s.replaced.IsZero() && again.After(s.cfg.Clock.Now()) {
		return fmt.Errorf("NodeNetwork %s became that of instance %s after this daemon had replaced it: do two nodes have the same name?", s.cfg.NodeName, o.Spec.InstanceID)
	}
	s.cfg.Logger.Warn("replacing the object of another instance", "instance", o.Spec.InstanceID, "uid", o.UID)
	err = s.api.Delete(ctx, resource, s.cfg.NodeName, o.UID, o.ResourceVersion) // only this exact state
	if apierrors.IsConflict(err) {
		s.observed.refresh(ctx)
		return errors.New("the object to replace was changed meanwhile; reading it again")
	}
	if err != nil && !apierrors.IsNotFound(err) {
		if !notAllowed(err) {
			s.observed.heard(err)
		}
		return fmt.Errorf("delete NodeNetwork %s: %w", s.cfg.NodeName, err)
	}
	s.replaced = s.cfg.Clock.Now()
	if err := failpoint.Hit("nodenetwork.replace.deleted"); err != nil {
		return err
	}
	s.observed.observe(nil, func(have *v1alpha1.NodeNetwork) bool { return have != nil && have.UID == o.UID })
	return s.createFor(ctx, n)
}

// node is the part of a Node that is used here.
type node struct {
	Metadata struct {
		Name string    `json:"name"`
		UID  types.UID `json:"uid"`
	} `json:"metadata"`
	Spec struct {
		ProviderID string `json:"providerID"`
	} `json:"spec"`
}

// getNode returns the Node with the same name, or nil if it does not exist.
func (s *creator) getNode(ctx context.Context) (*node, error) {
	n := &node{}
	err := s.api.Node(ctx, s.cfg.NodeName, n)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		s.observed.heard(err)
		return nil, err
	}
	return n, nil
}
