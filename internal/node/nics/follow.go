package nics

import (
	"maps"
	"slices"

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

// mirror keeps what is observed up to date with the API server: the PodNICs of this node, and the VPCs of Namespaces.
func (n *NICs) mirror() *kubeapi.Mirror {
	o := n.observed
	m := &kubeapi.Mirror{API: n.api, Sync: o.sync, Log: n.log, Update: func(change func()) { n.change(func(*observed) { change() }) }}
	m.KeepMetadata(kubeapi.Namespaces, kubeapi.Store[*kubeapi.Metadata]{
		Names: func() (all []types.NamespacedName) {
			for name := range o.namespaces {
				all = append(all, types.NamespacedName{Name: name})
			}
			return all
		},
		Put:  func(ns *kubeapi.Metadata) { o.namespaces[ns.Name] = ns.Annotations[v1alpha1.AnnotationVPC] },
		Drop: func(name types.NamespacedName, _ types.UID) { delete(o.namespaces, name.Name) },
	}, v1alpha1.AnnotationVPC)
	kubeapi.Keep(m, podNICs, n.api.Objects(podNICs, kubeapi.FieldEquals("status.nodeName", n.cfg.NodeName), func() runtime.Object { return &v1alpha1.PodNICList{} }),
		kubeapi.Store[*v1alpha1.PodNIC]{
			Mine:  func(p *v1alpha1.PodNIC) bool { return p.Status.NodeName == n.cfg.NodeName }, // the API server was asked for these
			Names: func() []types.NamespacedName { return slices.Collect(maps.Keys(o.objects)) },
			Put:   func(p *v1alpha1.PodNIC) { o.put(read(p, n.cfg.Bridges, n.rules)) },
			Drop:  o.drop,
			After: n.news.Set,
		})
	return m
}
