package kubeapi

import (
	"context"
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// lister has one object, which it streams, or lists where it does not stream.
type lister struct{ streams bool }

func (l lister) object() *Metadata {
	return &Metadata{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "1", Annotations: map[string]string{"large": "text"}}}
}

func (l lister) List(context.Context, metav1.ListOptions) (runtime.Object, error) {
	return &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []Metadata{*l.object()}}, nil
}

func (l lister) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w := watch.NewFakeWithChanSize(2, false)
	switch initial := o.SendInitialEvents != nil && *o.SendInitialEvents; {
	case initial && !l.streams:
		return nil, errors.New("lists are not streamed")
	case initial:
		w.Add(l.object())
		w.Action(watch.Bookmark, &Metadata{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}})
	}
	return w, nil
}

// Fields that nobody reads are removed before all objects are in memory.
func TestTrim(t *testing.T) {
	for what, l := range map[string]lister{"streamed": {true}, "listed": {false}} {
		ctx, cancel := context.WithCancel(t.Context())
		trimmed, all := 0, 0
		Follow(ctx, "things", l, Handler[*Metadata]{
			Trim: func(o *Metadata) { o.Annotations, trimmed = nil, trimmed+1 },
			All: func(list []*Metadata) {
				all += len(list)
				for _, o := range list {
					if o.Name != "a" || o.Annotations != nil {
						t.Errorf("%s: %+v", what, o)
					}
				}
				cancel()
			},
			Put: func(*Metadata) {}, Gone: func(*Metadata) {}, Outcome: func(error) {},
		})
		if all != 1 || trimmed == 0 {
			t.Errorf("%s: %d objects, trimmed %d times", what, all, trimmed)
		}
	}
}
