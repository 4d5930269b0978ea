package berthegress

import (
	"context"
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kubeapi"
)

// The kinds that a gateway reads, of its Egress only.
const (
	egresses     = "egresses"
	clientSlices = "egressclientslices"
)

var errNoEgress = errors.New("the Egress does not exist")

// follow hears of the Egress and its clients until ctx ends.
func (a *agent) follow(ctx context.Context, api *kubeapi.Client) {
	own := api.Objects(egresses, kubeapi.Only("metadata.name", a.cfg.EgressName), func() runtime.Object { return &v1alpha1.EgressList{} })
	of := api.Labelled(clientSlices, labels.Set{v1alpha1.LabelEgress: a.cfg.EgressName}.String(), func() runtime.Object { return &v1alpha1.EgressClientSliceList{} })
	var both sync.WaitGroup
	both.Go(func() {
		kubeapi.Follow(ctx, egresses, own, kubeapi.Handler[*v1alpha1.Egress]{
			Heard: a.heard,
			Put:   func(e *v1alpha1.Egress) { a.note(egresses, func(b *book) { b.egress = e }) },
			Gone: func(gone *v1alpha1.Egress) {
				a.note(egresses, func(b *book) {
					if b.egress != nil && b.egress.UID == gone.UID {
						b.egress = nil
					}
				})
			},
			All: func(list []*v1alpha1.Egress) {
				a.note(egresses, func(b *book) {
					b.egress = nil
					for _, e := range list {
						b.egress = e
					}
				})
			},
		})
	})
	both.Go(func() {
		kubeapi.Follow(ctx, clientSlices, of, kubeapi.Handler[*v1alpha1.EgressClientSlice]{
			Heard: a.heard,
			Put:   func(s *v1alpha1.EgressClientSlice) { a.note(clientSlices, func(b *book) { b.slices[s.UID] = s }) },
			Gone:  func(s *v1alpha1.EgressClientSlice) { a.note(clientSlices, func(b *book) { delete(b.slices, s.UID) }) },
			All: func(list []*v1alpha1.EgressClientSlice) {
				a.note(clientSlices, func(b *book) {
					b.slices = map[types.UID]*v1alpha1.EgressClientSlice{}
					for _, s := range list {
						b.slices[s.UID] = s
					}
				})
			},
		})
	})
	both.Wait()
}

// note writes down what was heard, and wakes the loop.
func (a *agent) note(resource string, write func(*book)) {
	a.book.mu.Lock()
	write(a.book)
	a.book.listed[resource] = true
	a.book.mu.Unlock()
	a.news.Set()
}

// heard notes how a request went. It logs when the API is away, and when it is back.
func (a *agent) heard(err error) {
	if kubeapi.Ended(err) {
		return
	}
	a.book.mu.Lock()
	before := a.book.apiErr
	a.book.apiErr = err
	if err != nil {
		a.book.failed++
	}
	a.book.mu.Unlock()
	switch {
	case err != nil && before == nil:
		a.log.Warn("the Kubernetes API does not answer; going on with what is known", "err", err)
	case err == nil && before != nil:
		a.log.Info("the Kubernetes API answers again")
	}
}
