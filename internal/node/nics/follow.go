package nics

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kubeapi"
)

// What is watched, in logs and in paths of the API.
const (
	podNICs    = "podnics"
	namespaces = "namespaces"
)

// follow keeps the book up to date with what the API server has, until ctx ends.
func (n *NICs) follow(ctx context.Context, wg *sync.WaitGroup) {
	cluster := kubeapi.NewCluster(n.api)
	cluster.Follow(kubeapi.Namespaces, n.namespaces(), v1alpha1.AnnotationVPC)
	wg.Go(func() { cluster.Run(ctx) })
	wg.Go(func() {
		kubeapi.Follow(ctx, podNICs, n.api.Objects(podNICs, kubeapi.Only("status.nodeName", n.cfg.NodeName),
			func() runtime.Object { return &v1alpha1.PodNICList{} }), n.podNICs())
	})
}

func (n *NICs) podNICs() kubeapi.Handler[*v1alpha1.PodNIC] {
	return kubeapi.Handler[*v1alpha1.PodNIC]{
		Heard: n.heard(podNICs),
		Put: func(o *v1alpha1.PodNIC) {
			if o.Status.NodeName != n.cfg.NodeName {
				return // the API server was asked for this node's
			}
			var senseless error
			n.change(func(b *book) { senseless = b.take(read(o, n.cfg.Bridges, n.rules)) })
			n.news.Set()
			n.complain(senseless)
		},
		Gone: func(o *v1alpha1.PodNIC) {
			n.change(func(b *book) { b.gone(types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, o.UID) })
			n.news.Set()
		},
		All: func(list []*v1alpha1.PodNIC) {
			var all []object
			var senseless []error
			for _, o := range list {
				if o.Status.NodeName == n.cfg.NodeName {
					all = append(all, read(o, n.cfg.Bridges, n.rules))
				}
			}
			n.change(func(b *book) {
				b.keepOnly(all)
				for _, o := range all {
					senseless = append(senseless, b.take(o))
				}
				b.listed.nics = true
			})
			n.news.Set()
			n.complain(senseless...)
		},
	}
}

// take is put, and returns, once, what makes no sense of the PodNIC.
func (b *book) take(o object) (senseless error) {
	before, had := b.put(o)
	if o.err != nil && (!had || before.err == nil || before.err.Error() != o.err.Error()) {
		return o.err
	}
	return nil
}

// complain logs what take returned. It is called without the lock.
func (n *NICs) complain(senseless ...error) {
	for _, err := range senseless {
		if err != nil {
			n.log.Error("a PodNIC that makes no sense is not plugged", "error", err)
		}
	}
}

func (n *NICs) namespaces() kubeapi.Handler[*kubeapi.Metadata] {
	return kubeapi.Handler[*kubeapi.Metadata]{
		Heard: n.heard(namespaces),
		Put: func(o *kubeapi.Metadata) {
			n.change(func(b *book) { b.namespaces[o.Name] = o.Annotations[v1alpha1.AnnotationVPC] })
		},
		Gone: func(o *kubeapi.Metadata) { n.change(func(b *book) { delete(b.namespaces, o.Name) }) },
		All: func(list []*kubeapi.Metadata) {
			n.change(func(b *book) {
				clear(b.namespaces)
				for _, o := range list {
					b.namespaces[o.Name] = o.Annotations[v1alpha1.AnnotationVPC]
				}
				b.listed.namespaces = true
			})
		},
	}
}

// heard notes whether something can be listed and watched, and logs when an outage
// begins or is over.
func (n *NICs) heard(what string) func(error) {
	return func(err error) {
		if kubeapi.Ended(err) {
			return
		}
		var before, after int
		n.change(func(b *book) {
			before = len(b.trouble)
			if err == nil {
				delete(b.trouble, what)
			} else {
				b.trouble[what] = err
			}
			after = len(b.trouble)
		})
		switch {
		case before == 0 && after > 0:
			n.log.Warn("the Kubernetes API cannot be used; NICs that were told of go on", "what", what, "error", err)
		case before > 0 && after == 0:
			n.log.Info("the Kubernetes API can be used again for NICs")
		case err != nil:
			n.log.Debug("the Kubernetes API cannot be used", "what", what, "error", err)
		}
	}
}
