package kubectl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/migrate/rollout"
)

// requests are the requests to the API server by which a migration reads and changes single objects.
type requests struct {
	api   *api
	berth string        // Berth's namespace
	limit time.Duration // of one request
	clock clock.Clock
	// retrying says that the API server does not answer.
	retrying func(why string)
}

// patiently repeats what reads or changes something while the API server does not answer, for as long as a run would.
// Errors that the API server answers with are final.
func (r *requests) patiently(ctx context.Context, do func(context.Context) error) error {
	began := r.clock.Now()
	for {
		err := do(ctx)
		if why := rollout.Untrusted(err); why != nil {
			return why
		}
		if err == nil || !away(err) || r.clock.Now().Sub(began) > rollout.Patience {
			return err
		}
		r.retrying("will retry: " + err.Error())
		select {
		case <-r.clock.After(time.Second):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// see is observe, patiently.
func (m *migration) see(ctx context.Context, everyPod bool) (s *seen, err error) {
	err = m.patiently(ctx, func(ctx context.Context) (err error) {
		s, err = m.observe(ctx, everyPod)
		return err
	})
	return s, err
}

// away reports whether an error says that the API server does not answer, or is about to end.
func away(err error) bool {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return apierrors.IsServiceUnavailable(err) || apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err)
	}
	for _, of := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNREFUSED, syscall.ECONNRESET, context.DeadlineExceeded} {
		if errors.Is(err, of) {
			return true
		}
	}
	lost := net.Error(nil)
	return errors.As(err, &lost)
}

// quick bounds a request that changes something.
func (r *requests) quick(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, r.limit, fmt.Errorf("no answer of the API server within %v", r.limit))
}

func (r *requests) daemonSet(ctx context.Context, namespace, name string) (*daemonSet, error) {
	var d daemonSet
	switch err := into(ctx, r.api.rest.Get().AbsPath(daemonSetPath(namespace, name)), &d); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read DaemonSet %s/%s: %w", namespace, name, err)
	}
	return &d, nil
}

// daemonsOf returns the state of a DaemonSet's pods by Node. Pods count by their owner: labels can be anybody's.
func (r *requests) daemonsOf(ctx context.Context, a *api, d *daemonSet) map[string]rollout.Daemon {
	out := map[string]rollout.Daemon{}
	if d == nil {
		return out
	}
	selector := metav1.FormatLabelSelector(d.Spec.Selector)
	for _, pod := range list[corev1.Pod](ctx, a, "pods of DaemonSet "+d.Name, podsPath(d.Namespace), query{"labelSelector": selector}) {
		owner := metav1.GetControllerOf(&pod)
		if owner == nil || owner.UID != d.UID || pod.Spec.NodeName == "" {
			continue
		}
		ready, _ := readiness(&pod)
		switch {
		case out[pod.Spec.NodeName] == rollout.Ready:
		case ready:
			out[pod.Spec.NodeName] = rollout.Ready
		default:
			out[pod.Spec.NodeName] = rollout.Present
		}
	}
	return out
}

func (r *requests) configPath() string { return r.in("configmaps") + join(progressName) }

// in returns the path of a resource in Berth's namespace.
func (r *requests) in(resource string) string { return namespacesPath + join(r.berth, resource) }

func (r *requests) deleteConfig(ctx context.Context, name string) error {
	return gone(r.api.rest.Delete().AbsPath(r.in("configmaps") + join(name)).Do(ctx).Error())
}

func (r *requests) patchNode(ctx context.Context, node string, change map[string]any) error {
	body, err := json.Marshal(change)
	if err != nil {
		return err
	}
	return r.api.rest.Patch(types.MergePatchType).AbsPath(nodesPath + join(node)).Body(body).Do(ctx).Error()
}

// send creates an object that may exist.
func (r *requests) send(ctx context.Context, path string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	err = r.api.rest.Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// evict evicts a pod, and no other of its name.
func (r *requests) evict(ctx context.Context, p rollout.Pod) error {
	uid := types.UID(p.UID)
	e := policyv1.Eviction{
		TypeMeta: metav1.TypeMeta{APIVersion: "policy/v1", Kind: "Eviction"}, ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}},
	}
	err := r.send(ctx, podsPath(p.Namespace)+join(p.Name, "eviction"), &e)
	switch {
	case apierrors.IsTooManyRequests(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause): // the latter deletes the pod
		return &rollout.BlockedError{Why: fmt.Sprintf("pod %s/%s: %v", p.Namespace, p.Name, err)}
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil
	default:
		return err
	}
}
