package kubeapi

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Sync is how far a Mirror has come: which kinds of objects were listed, and why a kind cannot be
// listed or watched at present. It is safe for concurrent use.
type Sync struct {
	mu     sync.Mutex // guards all below
	listed map[string]bool
	errs   map[string]error
}

// NewSync returns one for which nothing was listed yet.
func NewSync() *Sync { return &Sync{listed: map[string]bool{}, errs: map[string]error{}} }

// Listed reports whether all of these resources were listed.
func (s *Sync) Listed(resources ...string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !slices.ContainsFunc(resources, func(r string) bool { return !s.listed[r] })
}

// SetListed notes whether resources were listed.
func (s *Sync) SetListed(listed bool, resources ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range resources {
		s.listed[r] = listed
	}
}

// Err returns why one of these resources, or without arguments any, cannot be listed or watched at
// present: the error of the first by name. It returns nil if all can.
func (s *Sync) Err(resources ...string) error {
	_, err := s.Failing(resources...)
	return err
}

// Failing is Err with the name of the resource.
func (s *Sync) Failing(resources ...string) (resource string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r, e := range s.errs {
		if (len(resources) == 0 || slices.Contains(resources, r)) && (err == nil || r < resource) {
			resource, err = r, e
		}
	}
	return resource, err
}

// Set notes the outcome of a request for a resource. It returns whether requests for that resource failed
// before, and whether those for any did before and do now.
func (s *Sync) Set(resource string, err error) (failed, before, now bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before = len(s.errs) > 0
	_, failed = s.errs[resource]
	if delete(s.errs, resource); err != nil {
		s.errs[resource] = err
	}
	return failed, before, len(s.errs) > 0
}

// Mirror keeps what its owner knows of several kinds of objects up to date with the API server, and logs
// when an outage of the API server begins and ends.
type Mirror struct {
	API  *Client
	Sync *Sync
	Log  *slog.Logger
	// Update runs change while the owner's state is locked, and wakes whoever depends on the state.
	Update func(change func())
	// Explain adds to an error of a request for a resource what to do about it; nil: nothing.
	Explain func(resource string, err error) error

	runs    []func(context.Context)
	outages map[string]func(bool) // Store.Outage, by resource
}

// Store is how a mirror's owner keeps the objects of one kind. Its functions run inside the mirror's
// Update, one at a time; Trim does not.
type Store[T metav1.Object] struct {
	Mine  func(T) bool                                   // whether an object concerns the owner; nil: all do
	Names func() []types.NamespacedName                  // of the objects that are stored
	Put   func(T)                                        // stores an object that is new or changed
	Drop  func(name types.NamespacedName, uid types.UID) // of an object that is gone; UID empty: whichever has the name
	After func()                                         // after each change; nil: nothing follows
	// Listed is called when all objects of a list were stored; first: for the first time. nil: nothing follows.
	Listed func(first bool)
	// Outage is called when requests for these objects begin to fail (true), or succeed again; nil: nothing follows.
	Outage func(bool)
	Trim   func(T) // as Handler.Trim
}

// Keep has objects of berth.dev stored. It is to be called before Run.
func Keep[T metav1.Object](m *Mirror, resource string, l Lister, s Store[T]) {
	h := handler(m, resource, s)
	m.runs = append(m.runs, func(ctx context.Context) { Follow(ctx, resource, l, h) })
}

// KeepMetadata has the metadata of objects of Kubernetes stored, with these annotations. It is to be
// called before Run.
func (m *Mirror) KeepMetadata(k Kind, s Store[*Metadata], annotations ...string) {
	h := handler(m, k.resource, s)
	m.runs = append(m.runs, func(ctx context.Context) { Follow(ctx, k.resource, m.API.metadata(k, annotations...), h) })
}

// Run keeps the owner up to date until ctx ends.
func (m *Mirror) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, run := range m.runs {
		wg.Go(func() { run(ctx) })
	}
	wg.Wait()
}

// handler stores what is followed. An object that a list lacks is gone.
func handler[T metav1.Object](m *Mirror, resource string, s Store[T]) Handler[T] {
	if m.outages == nil {
		m.outages = map[string]func(bool){}
	}
	m.outages[resource] = s.Outage
	update := func(change func()) {
		m.Update(func() {
			if change(); s.After != nil {
				s.After()
			}
		})
	}
	mine := func(o T) bool { return s.Mine == nil || s.Mine(o) }
	return Handler[T]{
		Trim:    s.Trim,
		Outcome: func(err error) { m.NoteOutcome(resource, err) },
		Put: func(o T) {
			if mine(o) {
				update(func() { s.Put(o) })
			}
		},
		Gone: func(o T) { update(func() { s.Drop(NameOf(o), o.GetUID()) }) },
		All: func(list []T) {
			list = slices.DeleteFunc(list, func(o T) bool { return !mine(o) })
			update(func() {
				gone := sets.New(s.Names()...)
				for _, o := range list {
					gone.Delete(NameOf(o))
				}
				for name := range gone {
					s.Drop(name, "")
				}
				for _, o := range list {
					s.Put(o)
				}
				first := !m.Sync.Listed(resource)
				if m.Sync.SetListed(true, resource); s.Listed != nil {
					s.Listed(first)
				}
			})
		},
	}
}

// NameOf is the name of an object.
func NameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// NoteOutcome notes the outcome of a request for a resource, also of one that the owner made itself, and logs
// when an outage begins and ends.
func (m *Mirror) NoteOutcome(resource string, err error) {
	if Cancelled(err) {
		return
	}
	if err != nil && m.Explain != nil {
		err = m.Explain(resource, err)
	}
	failed, before, now := m.Sync.Set(resource, err)
	if failed != (err != nil) {
		m.Update(func() {
			if outage := m.outages[resource]; outage != nil {
				outage(err != nil)
			}
		})
	}
	switch {
	case !before && now:
		m.Log.Warn("the Kubernetes API cannot be used; continuing from memory", "what", resource, "err", err)
	case before && !now:
		m.Log.Info("the Kubernetes API can be used again", "what", resource)
	case err != nil:
		m.Log.Debug("the Kubernetes API cannot be used", "what", resource, "err", err)
	}
}
