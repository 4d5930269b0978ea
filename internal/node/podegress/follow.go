package podegress

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/membership"
)

// Watched resources, in logs and in paths of the API.
const (
	egressClients = "egressclients"
	egresses      = "egresses"
	namespaces    = "namespaces"
)

var watched = []string{egressClients, egresses, namespaces}

// mirror keeps what is observed up to date with the API server: the EgressClients of this node, all
// Egresses, and what Namespaces say about Egresses.
func (c *Clients) mirror() *kubeapi.Mirror {
	o := c.observed
	m := &kubeapi.Mirror{API: c.api, Sync: o.sync, Log: c.log, Update: func(change func()) { c.change(func(*observed) { change() }) }}
	m.KeepMetadata(kubeapi.LabelledNamespaces, kubeapi.Store[*kubeapi.Metadata]{
		Names: func() (all []types.NamespacedName) {
			for name := range o.egresses.namespaces {
				all = append(all, types.NamespacedName{Name: name})
			}
			return all
		},
		Put:    func(n *kubeapi.Metadata) { o.putNamespace(membership.ReadNamespace(n)) },
		Drop:   func(name types.NamespacedName, _ types.UID) { o.egresses.dropNamespace(name.Name) },
		Listed: o.listed,
	}, v1alpha1.AnnotationEgressSelectableFrom)
	kubeapi.Keep(m, egressClients, c.api.Objects(egressClients, kubeapi.FieldEquals("spec.nodeName", c.cfg.NodeName), func() runtime.Object { return &v1alpha1.EgressClientList{} }),
		kubeapi.Store[*v1alpha1.EgressClient]{
			Mine:  func(e *v1alpha1.EgressClient) bool { return e.Spec.NodeName == c.cfg.NodeName }, // the API server was asked for these
			Names: func() []types.NamespacedName { return slices.Collect(maps.Keys(o.clients)) },
			Put:   func(e *v1alpha1.EgressClient) { o.putClient(readClient(e)) },
			Drop:  o.dropClient, After: c.probed.Set,
			Listed: o.listed,
		})
	kubeapi.Keep(m, egresses, c.api.Objects(egresses, "", func() runtime.Object { return &v1alpha1.EgressList{} }),
		kubeapi.Store[*v1alpha1.Egress]{
			Names: func() []types.NamespacedName { return slices.Collect(maps.Keys(o.egresses.byName)) },
			Put:   func(e *v1alpha1.Egress) { o.putEgress(readEgress(e)) },
			Drop:  o.dropEgress, After: c.probed.Set,
			Listed: o.listed, Trim: trimEgress,
		})
	return m
}
