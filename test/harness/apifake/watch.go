package apifake

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// latency is the delay of an event, to which later is added for each further watch. A program that is
// cancelled must have no event under way: client-go's filter of metadata (watch.Filter) would wait for
// its reader forever.
const (
	latency = time.Millisecond
	later   = 7 * time.Microsecond
)

// watch writes events to w until ctx ends or w fails.
func (s *Server) watch(ctx context.Context, r *http.Request, w io.Writer) error {
	q, err := s.parse(r)
	if err != nil {
		return err
	}
	if q.name.Name != "" {
		return apierrors.NewBadRequest("a watch of one object by its name")
	}
	selects, err := q.selector()
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.watches++
	takes := latency + time.Duration(s.watches%1000)*later
	s.mu.Unlock()
	send := func(kind watch.EventType, o *unstructured.Unstructured) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(takes):
		}
		return json.NewEncoder(w).Encode(map[string]any{"type": kind, "object": q.shown(o).Object})
	}
	query := r.URL.Query()
	if seconds, err := strconv.Atoi(query.Get("timeoutSeconds")); err == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(seconds)*time.Second)
		defer cancel()
	}
	from, err := strconv.ParseInt(query.Get("resourceVersion"), 10, 64)
	if err != nil || from == 0 {
		if from, err = s.sendAll(q, selects, query.Get("sendInitialEvents") == "true", send); err != nil {
			return err
		}
	}
	return s.follow(ctx, q.resource, from, selects, send)
}

// follow sends the events after a version until ctx ends or send fails.
func (s *Server) follow(ctx context.Context, r schema.GroupVersionResource, from int64, selects func(*unstructured.Unstructured) bool, send func(watch.EventType, *unstructured.Unstructured) error) (err error) {
	for next := 0; ; {
		s.mu.Lock()
		events, changed := s.events[next:], s.changed
		s.mu.Unlock()
		next += len(events)
		for _, e := range events {
			if e.version <= from || e.resource != r {
				continue
			}
			switch had, has := selects(e.before), selects(e.after); {
			case had && has:
				err = send(watch.Modified, e.after)
			case has:
				err = send(watch.Added, e.after)
			case had && e.after != nil: // it is not selected any more
				gone := e.before.DeepCopy()
				gone.SetResourceVersion(e.after.GetResourceVersion())
				err = send(watch.Deleted, gone)
			case had:
				err = send(watch.Deleted, e.before)
			}
			if err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// sendAll sends all objects as new, and returns the version of that state.
func (s *Server) sendAll(q request, selects func(*unstructured.Unstructured) bool, marked bool, send func(watch.EventType, *unstructured.Unstructured) error) (int64, error) {
	s.mu.Lock()
	version := s.version
	var all []*unstructured.Unstructured
	for _, name := range sortedNames(s.objects[q.resource]) {
		if o := s.objects[q.resource][name].Unstructured; selects(o) {
			all = append(all, o)
		}
	}
	s.mu.Unlock()
	for _, o := range all {
		if err := send(watch.Added, o); err != nil {
			return 0, err
		}
	}
	if !marked {
		return version, nil
	}
	end := &unstructured.Unstructured{Object: map[string]any{}}
	end.SetGroupVersionKind(s.kinds[q.resource].GroupVersionKind)
	end.SetResourceVersion(strconv.FormatInt(version, 10))
	end.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return version, send(watch.Bookmark, end)
}
