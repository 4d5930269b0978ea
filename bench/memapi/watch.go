package memapi

import (
	"context"
	"reflect"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// watcher is a watch of a kind. A slow reader delays nobody: changes wait in a queue without a limit.
type watcher struct {
	api       *API
	of        *objects
	namespace string // "": all
	copied    func(client.Object) runtime.Object
	out       chan watch.Event
	wake      chan struct{}
	stopped   chan struct{}
	stop      sync.Once
	queue     []change // API.mu guards it
}

// change is a change of an object, which the reader gets a copy of.
type change struct {
	event watch.EventType
	o     client.Object
}

// watch adds a watch, which begins with the next change. a.mu is held. The caller must call run or Stop.
func (a *API) watch(k *objects, namespace string, copied func(client.Object) runtime.Object) *watcher {
	w := &watcher{
		api: a, of: k, namespace: namespace, copied: copied, out: make(chan watch.Event), wake: make(chan struct{}, 1), stopped: make(chan struct{}),
	}
	k.watches[w] = true
	return w
}

// add adds a change to the queue. API.mu is held.
func (w *watcher) add(event watch.EventType, o client.Object) {
	if w.namespace != "" && w.namespace != o.GetNamespace() {
		return
	}
	w.queue = append(w.queue, change{event, o})
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run sends changes to the reader until the context ends or the watch is stopped.
func (w *watcher) run(ctx context.Context) {
	defer close(w.out)
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.stopped:
			return
		case <-w.wake:
		}
		w.api.mu.Lock()
		queue := w.queue
		w.queue = nil
		w.api.mu.Unlock()
		for i, c := range queue {
			queue[i] = change{}
			select {
			case <-ctx.Done():
				return
			case <-w.stopped:
				return
			case w.out <- watch.Event{Type: c.event, Object: w.copied(c.o)}:
			}
		}
	}
}

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.out }

// Stop implements watch.Interface.
func (w *watcher) Stop() {
	w.stop.Do(func() {
		close(w.stopped)
		w.api.mu.Lock()
		defer w.api.mu.Unlock()
		delete(w.of.watches, w)
	})
}

// decoded returns a copy of an object that shares no memory with it, as if the reader had decoded it.
func decoded(o client.Object) runtime.Object {
	out := o.DeepCopyObject()
	own(reflect.ValueOf(out).Elem())
	return out
}

// decodedMetadata works like decoded for readers of metadata.
func (k *objects) decodedMetadata(o client.Object) runtime.Object {
	m := metadataOf(o)
	m.SetGroupVersionKind(k.gvk)
	return decoded(m)
}

// own replaces the strings in a value, which DeepCopy shares, by copies.
func own(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if v.CanSet() {
			v.SetString(strings.Clone(v.String()))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			own(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				own(v.Field(i))
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return
		}
		for i := range v.Len() {
			own(v.Index(i))
		}
	case reflect.Map:
		if v.Len() == 0 || !v.CanSet() {
			return
		}
		copied := reflect.MakeMapWithSize(v.Type(), v.Len())
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		for i := v.MapRange(); i.Next(); {
			key.Set(i.Key())
			value.Set(i.Value())
			own(key)
			own(value)
			copied.SetMapIndex(key, value)
		}
		v.Set(copied)
	}
}
