// Package apifake is a Kubernetes API server in memory, for programs that a test runs
// inside its own process, in virtual time. It speaks the real protocol with client-go:
// resource versions and conflicts, lists and watches with selectors, finalizers,
// preconditions, status subresources, merge patches and server-side apply. It has no
// validation, no defaults but the phase of a Pod, no admission and no roles, and collects garbage
// when it is asked to.
//
//	server.go     the kinds, and what changes objects
//	handler.go    the requests
//	watch.go      watches
//	apply.go      patches
//	transport.go  how programs of the process reach it
package apifake

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Kind is a kind of object that a Server has.
type Kind struct {
	schema.GroupVersionKind
	Resource string
	// Cluster: objects have no namespace. Status: it is a subresource.
	Cluster, Status bool
}

func (k Kind) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: k.Group, Resource: k.Resource}
}

// Server is the API server. It is safe for concurrent use.
type Server struct {
	kinds map[schema.GroupVersionResource]Kind

	mu      sync.Mutex // guards all below
	version int64
	made    int
	watches int // so far
	objects map[schema.GroupVersionResource]map[types.NamespacedName]*object
	events  []event       // all since the beginning
	changed chan struct{} // closed with the next event
}

// object has what each manager applied last.
type object struct {
	*unstructured.Unstructured
	applied map[string]map[string]any
}

// event is a change of an object: before is nil for a new one, after for a deleted one, whose last
// state has the version of the deletion.
type event struct {
	version       int64
	resource      schema.GroupVersionResource
	before, after *unstructured.Unstructured
}

// New is a server without objects.
func New(kinds ...Kind) *Server {
	s := &Server{
		kinds: map[schema.GroupVersionResource]Kind{}, objects: map[schema.GroupVersionResource]map[types.NamespacedName]*object{}, changed: make(chan struct{}),
	}
	for _, k := range kinds {
		r := k.GroupVersion().WithResource(k.Resource)
		s.kinds[r] = k
		s.objects[r] = map[types.NamespacedName]*object{}
	}
	return s
}

// nameOf is an object's key.
func nameOf(o *unstructured.Unstructured) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// record stores the new state of an object and notifies watches. s.mu is held.
func (s *Server) record(r schema.GroupVersionResource, before, after *unstructured.Unstructured) {
	s.version++
	if after != nil {
		after.SetResourceVersion(strconv.FormatInt(s.version, 10))
	} else {
		before = before.DeepCopy()
		before.SetResourceVersion(strconv.FormatInt(s.version, 10))
	}
	s.events = append(s.events, event{s.version, r, before, after})
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Server) create(r schema.GroupVersionResource, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	k := s.kinds[r]
	s.made++
	if o.GetName() == "" {
		o.SetName(fmt.Sprintf("%s%05d", o.GetGenerateName(), s.made))
	}
	if _, has := s.objects[r][nameOf(o)]; has {
		return nil, apierrors.NewAlreadyExists(k.groupResource(), o.GetName())
	}
	o.SetUID(types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", s.made)))
	o.SetCreationTimestamp(metav1.NewTime(time.Now()))
	o.SetGeneration(1)
	o.SetManagedFields(nil)
	o.SetGroupVersionKind(k.GroupVersionKind)
	if k.Status {
		delete(o.Object, "status")
	}
	if k.Kind == "Pod" {
		o.Object["status"] = map[string]any{"phase": "Pending"}
	}
	s.record(r, nil, o)
	s.objects[r][nameOf(o)] = &object{Unstructured: o, applied: map[string]map[string]any{}}
	return o, nil
}

func (s *Server) find(r schema.GroupVersionResource, name types.NamespacedName) (*object, error) {
	o, ok := s.objects[r][name]
	if !ok {
		return nil, apierrors.NewNotFound(s.kinds[r].groupResource(), name.Name)
	}
	return o, nil
}

// update changes an object except its status, or its status alone. s.mu is held.
func (s *Server) update(r schema.GroupVersionResource, o *object, want *unstructured.Unstructured, subresource string) (*unstructured.Unstructured, error) {
	k, now := s.kinds[r], o.Unstructured
	if v := want.GetResourceVersion(); v != "" && v != now.GetResourceVersion() {
		return nil, apierrors.NewConflict(k.groupResource(), now.GetName(), fmt.Errorf("the object has resourceVersion %s, not %s", now.GetResourceVersion(), v))
	}
	if uid := want.GetUID(); uid != "" && uid != now.GetUID() {
		return nil, apierrors.NewConflict(k.groupResource(), now.GetName(), fmt.Errorf("the object has UID %s, not %s", now.GetUID(), uid))
	}
	next := want.DeepCopy()
	if subresource == "status" {
		next = now.DeepCopy()
		setOrRemove(next.Object, "status", want.Object["status"])
	} else if k.Status {
		setOrRemove(next.Object, "status", now.Object["status"])
	}
	next.SetGroupVersionKind(k.GroupVersionKind)
	next.SetName(now.GetName())
	next.SetNamespace(now.GetNamespace())
	next.SetUID(now.GetUID())
	next.SetCreationTimestamp(now.GetCreationTimestamp())
	next.SetDeletionTimestamp(now.GetDeletionTimestamp())
	next.SetGeneration(now.GetGeneration())
	next.SetResourceVersion(now.GetResourceVersion())
	next.SetManagedFields(nil)
	if reflect.DeepEqual(next.Object, now.Object) {
		return now, nil
	}
	if !reflect.DeepEqual(spec(next.Object), spec(now.Object)) {
		next.SetGeneration(now.GetGeneration() + 1)
	}
	if next.GetDeletionTimestamp() != nil && len(next.GetFinalizers()) == 0 {
		s.record(r, next, nil)
		delete(s.objects[r], nameOf(next))
		return next, nil
	}
	s.record(r, now, next)
	o.Unstructured = next
	return next, nil
}

func setOrRemove(o map[string]any, key string, value any) {
	if value == nil {
		delete(o, key)
	} else {
		o[key] = value
	}
}

// spec is an object without metadata and status.
func spec(o map[string]any) map[string]any {
	out := maps.Clone(o)
	delete(out, "metadata")
	delete(out, "status")
	return out
}

// remove deletes an object, or marks it as deleted while it has finalizers. s.mu is held.
func (s *Server) remove(r schema.GroupVersionResource, o *object, p *metav1.Preconditions) (*unstructured.Unstructured, error) {
	now := o.Unstructured
	if p != nil && (p.UID != nil && *p.UID != now.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != now.GetResourceVersion()) {
		return nil, apierrors.NewConflict(s.kinds[r].groupResource(), now.GetName(), fmt.Errorf("the object has UID %s and resourceVersion %s", now.GetUID(), now.GetResourceVersion()))
	}
	if len(now.GetFinalizers()) == 0 {
		s.record(r, now, nil)
		delete(s.objects[r], nameOf(now))
		return now, nil
	}
	if now.GetDeletionTimestamp() != nil {
		return now, nil
	}
	next := now.DeepCopy()
	at := metav1.NewTime(time.Now())
	next.SetDeletionTimestamp(&at)
	next.SetGeneration(now.GetGeneration() + 1)
	s.record(r, now, next)
	o.Unstructured = next
	return next, nil
}

// Collect deletes objects whose owners are all gone, as Kubernetes' garbage collector does.
func (s *Server) Collect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	there := map[types.UID]bool{}
	for _, objects := range s.objects {
		for _, o := range objects {
			there[o.GetUID()] = true
		}
	}
	for again := true; again; {
		again = false
		for r, objects := range s.objects {
			for name, o := range objects {
				owners := o.GetOwnerReferences()
				if len(owners) == 0 || slices.ContainsFunc(owners, func(ref metav1.OwnerReference) bool { return there[ref.UID] }) {
					continue
				}
				_, _ = s.remove(r, o, nil) // without preconditions it cannot fail
				if _, is := objects[name]; !is {
					delete(there, o.GetUID())
					again = true
				}
			}
		}
	}
}

// Names lists the objects as "RESOURCE NAMESPACE/NAME", sorted.
func (s *Server) Names() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r, objects := range s.objects {
		for name := range objects {
			out = append(out, r.Resource+" "+name.String())
		}
	}
	slices.Sort(out)
	return out
}

// field is the text of a field by a selector's path.
func field(o map[string]any, path string) string {
	v, found, _ := unstructured.NestedFieldNoCopy(o, strings.Split(path, ".")...)
	switch {
	case found && v != nil:
		return fmt.Sprint(v)
	case strings.HasSuffix(path, "hostNetwork"):
		return "false" // as the API server has it of pods
	default:
		return ""
	}
}
