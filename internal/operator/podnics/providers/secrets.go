package providers

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/retry"
)

// secrets reads and watches Secrets of one namespace, each by its name: the operator may not list them, and
// needs no others.
type secrets struct {
	namespace string
	reader    client.Reader // of the API server
	watcher   client.WithWatch
	clock     clock.Clock
	log       *slog.Logger
	changed   func(vpc string) // called for each VPC whose Secret may have changed

	mu     sync.Mutex      // guards all below
	ctx    context.Context // of the watches; nil before run
	byVPC  map[string]use
	follow map[string]context.CancelFunc // ends the watch of a Secret, by its name
	done   sync.WaitGroup                // of the watches
}

// use is the Secret that a VPC has.
type use struct {
	name    string
	version string // the resource version that was read last
}

// read reads the Secret of a VPC from the API server.
func (s *secrets) read(ctx context.Context, vpc, name string) (*corev1.Secret, *problem) {
	out := &corev1.Secret{}
	defer func() { s.noteRead(vpc, use{name, out.ResourceVersion}) }()
	err := s.reader.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, out)
	switch {
	case apierrors.IsNotFound(err):
		return nil, &problem{ofCredentials, ReasonSecretNotFound, fmt.Sprintf("spec.credentials.secretName: there is no Secret %s in namespace %s, which is berth-operator's own", name, s.namespace)}
	case err != nil:
		return nil, &problem{ofCredentials, ReasonSecretUnreadable, fmt.Sprintf("spec.credentials.secretName: reading Secret %s/%s: %v", s.namespace, name, err)}
	}
	return out, nil
}

// noteRead remembers which version of a Secret was read: the watch, which begins with the Secret as it is, does
// not report that one.
func (s *secrets) noteRead(vpc string, read use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byVPC[vpc].name == read.name {
		s.byVPC[vpc] = read
	}
}

// use sets the Secret of a VPC; empty: none. A Secret is watched as long as a VPC uses it.
func (s *secrets) use(vpc, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.byVPC[vpc].name
	if old == name {
		return
	}
	delete(s.byVPC, vpc)
	if name != "" {
		s.byVPC[vpc] = use{name: name}
	}
	if end := s.follow[old]; end != nil && !s.used(old) {
		end()
		delete(s.follow, old)
	}
	s.begin(name)
}

// used reports whether some VPC uses a Secret. s.mu is held.
func (s *secrets) used(name string) bool {
	for _, u := range s.byVPC {
		if u.name == name {
			return true
		}
	}
	return false
}

// begin watches a Secret unless it is watched already. s.mu is held.
func (s *secrets) begin(name string) {
	if s.ctx == nil || name == "" || s.follow[name] != nil {
		return
	}
	ctx, end := context.WithCancel(s.ctx)
	s.follow[name] = end
	s.done.Go(func() { s.watchOne(ctx, name) })
}

// run watches until ctx ends.
func (s *secrets) run(ctx context.Context) error {
	s.mu.Lock()
	s.ctx = ctx
	for _, u := range s.byVPC {
		s.begin(u.name)
	}
	s.mu.Unlock()
	<-ctx.Done()
	s.done.Wait()
	return nil
}

// watchOne watches a Secret until ctx ends. The API server ends each watch after some minutes.
func (s *secrets) watchOne(ctx context.Context, name string) {
	for ctx.Err() == nil {
		failed := false
		_ = retry.Until(ctx, s.clock, retry.Policy{First: time.Second, Most: time.Minute, Spread: true}, func(ctx context.Context) error {
			err := s.watchOnce(ctx, name)
			if err != nil && !failed && ctx.Err() == nil {
				s.log.Warn("watching the Secret of a VPC failed, will try again; the Secret is also read from time to time", "secret", name, "err", err)
			}
			failed = true
			return err
		})
	}
}

// watchOnce returns at the end of one watch. Each watch begins with the Secret as it is: no change between two is
// missed.
func (s *secrets) watchOnce(ctx context.Context, name string) error {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	w, err := s.watcher.Watch(ctx, list, client.InNamespace(s.namespace), client.MatchingFields{"metadata.name": name})
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
		for _, vpc := range s.concerned(name, e) {
			s.changed(vpc)
		}
	}
	if !seen && s.clock.Now().Sub(began) < time.Second {
		return fmt.Errorf("the watch ended at once")
	}
	return nil
}

// concerned are the VPCs that have read another version of a Secret than that of an event.
func (s *secrets) concerned(name string, e watch.Event) (out []string) {
	version := ""
	if o, err := meta.Accessor(e.Object); err == nil && e.Type != watch.Deleted {
		version = o.GetResourceVersion()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for vpc, u := range s.byVPC {
		if u.name == name && u.version != version {
			out = append(out, vpc)
		}
	}
	return out
}
