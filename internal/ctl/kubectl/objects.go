package kubectl

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ctl/connect"
	"github.com/berthnet/berth/internal/ctl/diagnose"
)

// Paths of kinds.
const (
	nodesPath      = "/api/v1/nodes"
	namespacesPath = "/api/v1/namespaces"
	eventsPath     = "/api/v1/events"
	berthPath      = "/apis/berth.dev/v1alpha1"
	networksPath   = berthPath + "/nodenetworks"
	poolsPath      = berthPath + "/addresspools"
	blocksPath     = berthPath + "/addressblocks"
	requestsPath   = berthPath + "/blockrequests"
	vpcsPath       = berthPath + "/vpcs"
	podnicsPath    = berthPath + "/podnics"
	egressesPath   = berthPath + "/egresses"
	clientsPath    = berthPath + "/egressclients"
	eniConfigsPath = "/apis/crd.k8s.amazonaws.com/v1alpha1/eniconfigs" // the Amazon VPC CNI's
	leasesPath     = "/apis/coordination.k8s.io/v1/namespaces"
)

func podsPath(namespace string) string { return namespacesPath + join(namespace) + "/pods" }

// eventsIn returns the path of the events in a namespace or, if it is empty, of all.
func eventsIn(namespace string) string {
	if namespace == "" {
		return eventsPath
	}
	return namespacesPath + join(namespace) + "/events"
}

func (a *api) nodes(ctx context.Context) []corev1.Node {
	list, _ := all[corev1.Node](ctx, a, "Nodes", nodesPath, nil)
	return list
}

func (a *api) node(ctx context.Context, name string) diagnose.Fact[corev1.Node] {
	return one[corev1.Node](ctx, a, "Nodes", nodesPath+join(name))
}

func (a *api) pod(ctx context.Context, namespace, name string) diagnose.Fact[corev1.Pod] {
	return one[corev1.Pod](ctx, a, "pods", podsPath(namespace)+join(name))
}

func (a *api) namespace(ctx context.Context, name string) diagnose.Fact[corev1.Namespace] {
	return one[corev1.Namespace](ctx, a, "namespaces", namespacesPath+join(name))
}

// berthPods returns the pods of one of Berth's programs, on one node or, if node is empty, on all.
func (a *api) berthPods(ctx context.Context, namespace, name, node string) []corev1.Pod {
	q := query{"labelSelector": connect.NameLabel + "=" + name}
	if node != "" {
		q["fieldSelector"] = "spec.nodeName=" + node
	}
	list, _ := all[corev1.Pod](ctx, a, "pods of "+name, podsPath(namespace), q)
	return list
}

func (a *api) networks(ctx context.Context) []v1alpha1.NodeNetwork {
	list, _ := all[v1alpha1.NodeNetwork](ctx, a, "NodeNetworks", networksPath, nil)
	return list
}

func (a *api) network(ctx context.Context, node string) diagnose.Fact[v1alpha1.NodeNetwork] {
	return one[v1alpha1.NodeNetwork](ctx, a, "NodeNetworks", networksPath+join(node))
}

func (a *api) pools(ctx context.Context) []v1alpha1.AddressPool {
	list, _ := all[v1alpha1.AddressPool](ctx, a, "AddressPools", poolsPath, nil)
	return list
}

// blocks returns the blocks of one node or, if node is empty, of all.
func (a *api) blocks(ctx context.Context, node string) []v1alpha1.AddressBlock {
	q := query{}
	if node != "" {
		q["labelSelector"] = v1alpha1.LabelNode + "=" + v1alpha1.NodeLabel(node)
	}
	list, _ := all[v1alpha1.AddressBlock](ctx, a, "AddressBlocks", blocksPath, q)
	return list
}

// requests returns the requests of one node or, if node is empty, of all.
func (a *api) requests(ctx context.Context, node string) []v1alpha1.BlockRequest {
	q := query{}
	if node != "" {
		q["fieldSelector"] = "spec.nodeName=" + node
	}
	list, _ := all[v1alpha1.BlockRequest](ctx, a, "BlockRequests", requestsPath, q)
	return list
}

func (a *api) vpcs(ctx context.Context) []v1alpha1.VPC {
	list, _ := all[v1alpha1.VPC](ctx, a, "VPCs", vpcsPath, nil)
	return list
}

// podnicsIn returns the path of the PodNICs in a namespace.
func podnicsIn(namespace string) string {
	return berthPath + "/namespaces" + join(namespace) + "/podnics"
}

// nics returns the PodNICs at a path.
func (a *api) nics(ctx context.Context, path string, q query) []v1alpha1.PodNIC {
	list, _ := all[v1alpha1.PodNIC](ctx, a, "PodNICs", path, q)
	return list
}

func (a *api) egresses(ctx context.Context) []v1alpha1.Egress {
	list, _ := all[v1alpha1.Egress](ctx, a, "Egresses", egressesPath, nil)
	return list
}

// egressesIn returns the path of the Egresses in a namespace.
func egressesIn(namespace string) string {
	return berthPath + "/namespaces" + join(namespace) + "/egresses"
}

// egressclientsIn returns the path of the EgressClients in a namespace.
func egressclientsIn(namespace string) string {
	return berthPath + "/namespaces" + join(namespace) + "/egressclients"
}

// egressClients returns the EgressClients of all namespaces.
func (a *api) egressClients(ctx context.Context, q query) []v1alpha1.EgressClient {
	list, _ := all[v1alpha1.EgressClient](ctx, a, "EgressClients", clientsPath, q)
	return list
}

func (a *api) lease(ctx context.Context, namespace string) diagnose.Fact[coordinationv1.Lease] {
	return one[coordinationv1.Lease](ctx, a, "Leases", leasesPath+join(namespace)+"/leases"+join(leaseName))
}

// events returns the events of a namespace or, if it is empty, of all, about one object or,
// if name is empty, about all, and the list's resource version.
func (a *api) events(ctx context.Context, namespace, kind, name string) (list []corev1.Event, version string) {
	q := query{}
	if name != "" {
		q["fieldSelector"] = "involvedObject.kind=" + kind + ",involvedObject.name=" + name
	}
	return all[corev1.Event](ctx, a, "Events", eventsIn(namespace), q)
}
