package vpc

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/retry"
)

// secrets are those of one namespace. Each is read and watched by its name: to list them
// the operator has no right, and of others it has no need.
type secrets struct {
	namespace string
	reader    client.Reader // past any cache
	watch     client.WithWatch
	clock     clock.Clock
	log       *slog.Logger
	changed   func(vpc string) // told of each VPC whose Secret may be another

	mu     sync.Mutex         // guards all below
	ctx    context.Context    // of the watches; nil until run
	byVPC  map[string]string  // the Secret's name by VPC
	follow map[string]*follow // by the Secret's name
	done   sync.WaitGroup
}

// follow is a watch of one Secret.
type follow struct{ end context.CancelFunc }

// read reads a Secret as of now.
func (s *secrets) read(ctx context.Context, name string) (*corev1.Secret, *problem) {
	out := &corev1.Secret{}
	err := s.reader.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, out)
	switch {
	case apierrors.IsNotFound(err):
		return nil, &problem{ofCredentials, ReasonSecretNotFound, fmt.Sprintf("spec.credentials.secretName: there is no Secret %s in namespace %s, which is berth-operator's own", name, s.namespace)}
	case err != nil:
		return nil, &problem{ofCredentials, ReasonSecretUnreadable, fmt.Sprintf("spec.credentials.secretName: reading Secret %s/%s: %v", s.namespace, name, err)}
	}
	return out, nil
}

// use notes which Secret a VPC has; empty: none. The Secret is watched as long as some
// VPC has it.
func (s *secrets) use(vpc, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.byVPC[vpc]
	if old == name {
		return
	}
	delete(s.byVPC, vpc)
	if name != "" {
		s.byVPC[vpc] = name
	}
	if f := s.follow[old]; f != nil && len(s.users(old)) == 0 {
		f.end()
		delete(s.follow, old)
	}
	s.begin(name)
}

// users are the VPCs that have a Secret. s.mu is held.
func (s *secrets) users(name string) (out []string) {
	for vpc, n := range s.byVPC {
		if n == name {
			out = append(out, vpc)
		}
	}
	return out
}

// begin watches a Secret if nobody does. s.mu is held.
func (s *secrets) begin(name string) {
	if s.ctx == nil || name == "" || s.follow[name] != nil {
		return
	}
	ctx, end := context.WithCancel(s.ctx)
	s.follow[name] = &follow{end}
	s.done.Go(func() { s.watchOne(ctx, name) })
}

// run watches until ctx ends.
func (s *secrets) run(ctx context.Context) error {
	s.mu.Lock()
	s.ctx = ctx
	for _, name := range s.byVPC {
		s.begin(name)
	}
	s.mu.Unlock()
	<-ctx.Done()
	s.done.Wait()
	return nil
}

// watchOne watches a Secret until ctx ends. The API server ends each watch after some
// minutes.
func (s *secrets) watchOne(ctx context.Context, name string) {
	failures := 0
	for ctx.Err() == nil {
		err := s.watchOnce(ctx, name)
		if err == nil {
			failures = 0
			continue
		}
		if failures == 0 && ctx.Err() == nil {
			s.log.Warn("watching the Secret of a VPC, will try again; it is read now and then besides", "secret", name, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-s.clock.After(retry.Jitter(retry.Delay(time.Second, time.Minute, failures))):
		}
		failures++
	}
}

// watchOnce returns at the end of one watch; nil if that was in order. The watch begins
// with the Secret as it is, so that nothing is missed between two.
func (s *secrets) watchOnce(ctx context.Context, name string) error {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	w, err := s.watch.Watch(ctx, list, client.InNamespace(s.namespace), client.MatchingFields{"metadata.name": name})
	if err != nil {
		return err
	}
	defer w.Stop()
	began, seen := s.clock.Now(), false
	for e := range w.ResultChan() {
		if status, ok := e.Object.(*metav1.Status); ok {
			return apierrors.FromObject(status)
		}
		seen = true
		for _, vpc := range s.usersOf(name) {
			s.changed(vpc)
		}
	}
	if !seen && s.clock.Now().Sub(began) < time.Second {
		return fmt.Errorf("the watch ended at once")
	}
	return nil
}

func (s *secrets) usersOf(name string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.users(name)
}
