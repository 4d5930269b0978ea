package podegress

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/membership"
)

// What is watched, in logs and in paths of the API.
const (
	egressClients = "egressclients"
	egresses      = "egresses"
	namespaces    = "namespaces"
)

// follow keeps the book up to date with what the API server has, until ctx ends: the
// EgressClients of this node, all Egresses, and what Namespaces say of Egresses.
func (c *Clients) follow(ctx context.Context, wg *sync.WaitGroup) {
	cluster := kubeapi.NewCluster(c.api)
	cluster.Follow(kubeapi.LabelledNamespaces, c.namespaces(), v1alpha1.AnnotationEgressSelectableFrom)
	wg.Go(func() { cluster.Run(ctx) })
	wg.Go(func() {
		kubeapi.Follow(ctx, egressClients, c.api.Objects(egressClients, kubeapi.Only("spec.nodeName", c.cfg.NodeName),
			func() runtime.Object { return &v1alpha1.EgressClientList{} }), c.members())
	})
	wg.Go(func() {
		kubeapi.Follow(ctx, egresses, c.api.Objects(egresses, "",
			func() runtime.Object { return &v1alpha1.EgressList{} }), c.targets())
	})
}

func (c *Clients) members() kubeapi.Handler[*v1alpha1.EgressClient] {
	ours := func(o *v1alpha1.EgressClient) bool { return o.Spec.NodeName == c.cfg.NodeName } // the API server was asked for these
	return kubeapi.Handler[*v1alpha1.EgressClient]{
		Heard: c.heard(egressClients),
		Put: func(o *v1alpha1.EgressClient) {
			if ours(o) {
				c.change(func(b *book) { b.putMember(readClient(o)) })
				c.probed.Set()
			}
		},
		Gone: func(o *v1alpha1.EgressClient) {
			c.change(func(b *book) { b.dropMember(nameOfObject(o), o.UID) })
			c.probed.Set()
		},
		All: func(list []*v1alpha1.EgressClient) {
			var all []member
			for _, o := range list {
				if ours(o) {
					all = append(all, readClient(o))
				}
			}
			c.change(func(b *book) {
				there := map[types.NamespacedName]bool{}
				for _, m := range all {
					there[m.name] = true
				}
				for name := range b.members {
					if !there[name] {
						b.dropMember(name, "")
					}
				}
				for _, m := range all {
					b.putMember(m)
				}
				b.isThere(egressClients)
			})
			c.probed.Set()
		},
	}
}

func (c *Clients) targets() kubeapi.Handler[*v1alpha1.Egress] {
	return kubeapi.Handler[*v1alpha1.Egress]{
		Heard: c.heard(egresses), Trim: trimEgress,
		Put: func(o *v1alpha1.Egress) {
			var senseless error
			t := readEgress(o)
			c.change(func(b *book) { senseless = b.putTarget(t) })
			c.probed.Set()
			c.complain(senseless)
		},
		Gone: func(o *v1alpha1.Egress) {
			c.change(func(b *book) { b.dropTarget(nameOfObject(o), o.UID) })
			c.probed.Set()
		},
		All: func(list []*v1alpha1.Egress) {
			var all []target
			var senseless []error
			for _, o := range list {
				all = append(all, readEgress(o))
			}
			c.change(func(b *book) {
				there := map[types.NamespacedName]bool{}
				for _, t := range all {
					there[t.name] = true
				}
				for name := range b.targets {
					if !there[name] {
						b.dropTarget(name, "")
					}
				}
				for _, t := range all {
					senseless = append(senseless, b.putTarget(t))
				}
				b.isThere(egresses)
			})
			c.probed.Set()
			c.complain(senseless...)
		},
	}
}

func nameOfObject(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// complain logs what makes no sense. It is called without the lock.
func (c *Clients) complain(senseless ...error) {
	for _, err := range senseless {
		if err != nil {
			c.log.Error("what of an Egress makes no sense is left out", "error", err)
		}
	}
}

func (c *Clients) namespaces() kubeapi.Handler[*kubeapi.Metadata] {
	return kubeapi.Handler[*kubeapi.Metadata]{
		Heard: c.heard(namespaces),
		Put: func(o *kubeapi.Metadata) {
			c.change(func(b *book) { b.putNamespace(membership.ReadNamespace(o)) })
		},
		Gone: func(o *kubeapi.Metadata) { c.change(func(b *book) { b.dropNamespace(o.Name) }) },
		All: func(list []*kubeapi.Metadata) {
			c.change(func(b *book) {
				there := map[string]bool{}
				for _, o := range list {
					there[o.Name] = true
				}
				for name := range b.namespaces {
					if !there[name] {
						b.dropNamespace(name)
					}
				}
				for _, o := range list {
					b.putNamespace(membership.ReadNamespace(o))
				}
				b.isThere(namespaces)
			})
		},
	}
}

// isThere notes that the API server told all there is of a kind. What pods are to have may
// not have been known before.
func (b *book) isThere(what string) {
	if !b.listed[what] {
		b.listed[what] = true
		b.touchAll()
	}
	b.wakeAll()
}

// heard notes whether something can be listed and watched, and logs when an outage
// begins or is over.
func (c *Clients) heard(what string) func(error) {
	return func(err error) {
		if kubeapi.Ended(err) {
			return
		}
		var before, after int
		c.change(func(b *book) {
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
			c.log.Warn("the Kubernetes API cannot be used; egress that was told of goes on", "what", what, "error", err)
		case before > 0 && after == 0:
			c.log.Info("the Kubernetes API can be used again for egress")
		case err != nil:
			c.log.Debug("the Kubernetes API cannot be used", "what", what, "error", err)
		}
	}
}
