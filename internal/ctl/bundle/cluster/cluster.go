// Package cluster collects the parts of a support bundle that come from a cluster. It uses
// the API server only.
//
//	cluster.go  parts and nodes
//	objects.go  Kubernetes objects
//	others.go   fields of objects of other software
//	events.go   events and pods
//	logs.go     logs of Berth's pods, and of kubelets
//	exec.go     the bundle of a node, by its own berthctl
//	operator.go endpoints of operators and gateways
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ctl/bundle/archive"
	"github.com/berthnet/berth/internal/ctl/connect"
)

// ours selects Berth's pods, except gateways of Egresses: those are in the Egresses'
// namespaces, and users choose their labels.
const ours = connect.NameLabel + " in (" + connect.DaemonName + ", " + connect.OperatorName + ")"

// Options say what to collect.
type Options struct {
	Nodes     []string // these, or
	All       bool     // all
	Namespace string   // of Berth's pods, except gateways; empty: any
	Timeout   time.Duration
	// NodeTimeout is the limit for a node's own bundle.
	NodeTimeout time.Duration
	Since       time.Duration
	FileSize    string // for a node's own bundle
}

// Cluster collects from one cluster.
type Cluster struct {
	Options
	cfg  *rest.Config
	core rest.Interface // of v1
	dial connect.Dialer // of operators
	pods []corev1.Pod   // Berth's
	// noPods is the error from reading pods.
	noPods error
	// gateways are the pods of Egresses; noGateways is the error from reading them.
	gateways   []corev1.Pod
	noGateways error
}

// New reads the list of Berth's pods. It fails if the API server cannot be reached, or if a
// node in o.Nodes does not exist.
func New(ctx context.Context, cfg *rest.Config, o Options) (*Cluster, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1                  // the number of concurrent parts bounds requests
	scheme := runtime.NewScheme() // a scheme with all kinds would double the size of the program
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	cfg.APIPath, cfg.GroupVersion, cfg.NegotiatedSerializer = "/api", &corev1.SchemeGroupVersion, serializer.NewCodecFactory(scheme).WithoutConversion()
	core, err := rest.RESTClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("create a client for the Kubernetes API: %w", err)
	}
	dial, err := connect.Forwarder(cfg)
	if err != nil {
		return nil, err
	}
	k := &Cluster{Options: o, cfg: cfg, core: core, dial: dial}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	if err := core.Get().AbsPath("/version").Do(ctx).Error(); err != nil {
		return nil, fmt.Errorf("reach the API server at %s: %w", cfg.Host, err)
	}
	k.pods, k.noPods = k.labelled(ctx, o.Namespace, ours)
	k.gateways, k.noGateways = k.labelled(ctx, "", v1alpha1.LabelEgress)
	for _, name := range o.Nodes {
		if _, known := k.daemons()[name]; known {
			continue
		}
		var n corev1.Node
		if err := core.Get().Resource("nodes").Name(name).Do(ctx).Into(&n); err != nil {
			return nil, fmt.Errorf("--node %s: %w", name, err)
		}
	}
	return k, nil
}

// labelled returns the pods that match labels, in a namespace or, if it is empty, in all namespaces.
func (k *Cluster) labelled(ctx context.Context, namespace, labels string) ([]corev1.Pod, error) {
	var list corev1.PodList
	err := k.core.Get().Resource("pods").NamespaceIfScoped(namespace, namespace != "").Param("labelSelector", labels).Do(ctx).Into(&list)
	return list.Items, err
}

// nodesAtOnce is the number of nodes collected in parallel.
const nodesAtOnce = 8

// Collect collects the cluster's objects, then nodes in parallel.
func (k *Cluster) Collect(ctx context.Context, a *archive.Archive, progress io.Writer) error {
	fmt.Fprintln(progress, "reading objects and logs through the API server")
	if err := a.Collect(ctx, nodesAtOnce, k.Objects()); err != nil {
		return err
	}
	nodes := k.nodes(ctx)
	fmt.Fprintf(progress, "collecting from %d nodes\n", len(nodes))
	var parts []archive.Part
	for _, name := range nodes {
		parts = append(parts,
			archive.Part{Name: "node " + name, Timeout: k.NodeTimeout, Collect: func(ctx context.Context, s *archive.Sink) error { return k.node(ctx, s, name) }},
			k.part("kubelet of "+name, func(ctx context.Context, s *archive.Sink) error { return k.kubelet(ctx, s, name) }),
		)
	}
	return a.Collect(ctx, nodesAtOnce, parts)
}

// Objects returns the parts that need no access to a node.
func (k *Cluster) Objects() []archive.Part {
	parts := []archive.Part{
		k.part("version", k.version),
		k.part("events", k.events),
		k.part("pods of nodes", k.podsOfNodes),
	}
	for _, kind := range kinds {
		parts = append(parts, k.part("objects "+kind.name(), func(ctx context.Context, s *archive.Sink) error { return k.objects(ctx, s, kind) }))
	}
	if k.noPods != nil {
		parts = append(parts, k.part("pods of Berth", func(context.Context, *archive.Sink) error { return k.noPods }))
	}
	if k.noGateways != nil {
		parts = append(parts, k.part("gateways of Egresses", func(context.Context, *archive.Sink) error { return k.noGateways }))
	}
	for _, p := range k.pods {
		isOperator := p.Labels[connect.NameLabel] == connect.OperatorName
		if isOperator {
			parts = append(parts, k.part("operator "+p.Namespace+"/"+p.Name, func(ctx context.Context, s *archive.Sink) error { return k.operator(ctx, s, p) }))
		}
		if isOperator || k.wanted(p.Spec.NodeName) {
			parts = append(parts, k.part("logs of "+p.Namespace+"/"+p.Name, func(ctx context.Context, s *archive.Sink) error { return k.podLogs(ctx, s, p, folderOf(p)) }))
		}
	}
	for _, p := range k.gateways {
		if k.wanted(p.Spec.NodeName) {
			parts = append(parts,
				k.part("gateway "+p.Namespace+"/"+p.Name, func(ctx context.Context, s *archive.Sink) error { return k.gateway(ctx, s, p) }),
				k.part("logs of gateway "+p.Namespace+"/"+p.Name, func(ctx context.Context, s *archive.Sink) error {
					return k.podLogs(ctx, s, p, gatewayFolder(p), gatewayContainer)
				}))
		}
	}
	return parts
}

func (k *Cluster) part(name string, collect func(context.Context, *archive.Sink) error) archive.Part {
	return archive.Part{Name: name, Timeout: k.Timeout, Collect: collect}
}

// wanted reports whether to collect from a node.
func (k *Cluster) wanted(node string) bool { return k.All || slices.Contains(k.Nodes, node) }

// daemons returns the pods of berthd by node. If a node has several, it prefers a running one.
func (k *Cluster) daemons() map[string]corev1.Pod {
	out := map[string]corev1.Pod{}
	for _, p := range k.pods {
		if p.Labels[connect.NameLabel] != connect.DaemonName || p.Spec.NodeName == "" {
			continue
		}
		if had, ok := out[p.Spec.NodeName]; !ok || had.Status.Phase != corev1.PodRunning {
			out[p.Spec.NodeName] = p
		}
	}
	return out
}

// nodes returns the names of the nodes to collect from.
func (k *Cluster) nodes(ctx context.Context) []string {
	if !k.All {
		return k.Nodes
	}
	found := map[string]bool{}
	for name := range k.daemons() {
		found[name] = true
	}
	ctx, cancel := context.WithTimeout(ctx, k.Timeout)
	defer cancel()
	var list metav1.PartialObjectMetadataList
	err := k.core.Get().Resource("nodes").SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").Do(ctx).Into(&list)
	if err == nil { // the part for Nodes reports the error; use the nodes that have a daemon
		for _, n := range list.Items {
			found[n.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// version adds the API server's version and readiness.
func (k *Cluster) version(ctx context.Context, s *archive.Sink) error {
	data, err := k.core.Get().AbsPath("/version").Do(ctx).Raw()
	if err != nil {
		return err
	}
	ready, readyErr := k.core.Get().AbsPath("/readyz").Param("verbose", "").Do(ctx).Raw()
	return errors.Join(s.Document("cluster/version.json", data), readyErr, s.Bytes("cluster/readyz.txt", ready))
}
