package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ctl/bundle/archive"
	"github.com/berthnet/berth/internal/redact"
)

// kind is a kind to collect from all namespaces. Secrets and ConfigMaps are never collected.
type kind struct {
	path     string // of its group and version
	resource string
	file     string // file name; empty: the resource's
	labels   string // selector; empty: all
	ours     bool   // only objects with berth in their name, or created by Berth
	others   fields // fields to keep of other software's objects; nil: all, for Berth's own kinds
}

func (k kind) name() string { return cmp.Or(k.file, k.resource) }

var kinds = []kind{
	{path: "/api/v1", resource: "nodes", others: ofNode},
	{path: "/api/v1", resource: "pods", labels: ours},
	{path: "/api/v1", resource: "pods", labels: v1alpha1.LabelEgress, file: "gateways"},
	{path: "/api/v1", resource: "serviceaccounts", ours: true},
	{path: "/api/v1", resource: "services", ours: true},
	{path: "/apis/apps/v1", resource: "daemonsets", others: ofDaemonSet}, // other software that changes nodes' networks
	{path: "/apis/apps/v1", resource: "deployments", ours: true},
	{path: "/apis/apps/v1", resource: "controllerrevisions", ours: true},
	{path: "/apis/policy/v1", resource: "poddisruptionbudgets", ours: true},
	{path: "/apis/coordination.k8s.io/v1", resource: "leases", ours: true},
	{path: "/apis/storage.k8s.io/v1", resource: "csinodes", others: fields{"spec"}}, // volumes use device slots of an instance
	{path: "/apis/rbac.authorization.k8s.io/v1", resource: "clusterroles", ours: true},
	{path: "/apis/rbac.authorization.k8s.io/v1", resource: "clusterrolebindings", ours: true},
	{path: "/apis/admissionregistration.k8s.io/v1", resource: "validatingadmissionpolicies", ours: true},
	{path: "/apis/admissionregistration.k8s.io/v1", resource: "validatingadmissionpolicybindings", ours: true},
	{path: "/apis/admissionregistration.k8s.io/v1", resource: "validatingwebhookconfigurations", others: ofWebhook},
	{path: "/apis/admissionregistration.k8s.io/v1", resource: "mutatingwebhookconfigurations", others: ofWebhook},
	{path: "/apis/apiextensions.k8s.io/v1", resource: "customresourcedefinitions", ours: true},
	{path: "/apis/networking.k8s.io/v1", resource: "networkpolicies", others: fields{"spec"}},
	{path: "/apis/policy.networking.k8s.io/v1beta1", resource: "clusternetworkpolicies", others: fields{"spec", "status"}},
	{path: "/apis/k8s.cni.cncf.io/v1", resource: "network-attachment-definitions", others: fields{"spec"}},
	{path: "/apis/berth.dev/v1alpha1", resource: "nodenetworks"},
	{path: "/apis/berth.dev/v1alpha1", resource: "addresspools"},
	{path: "/apis/berth.dev/v1alpha1", resource: "addressblocks"},
	{path: "/apis/berth.dev/v1alpha1", resource: "blockrequests"},
	{path: "/apis/berth.dev/v1alpha1", resource: "vpcs"},
	{path: "/apis/berth.dev/v1alpha1", resource: "podnics"},
	{path: "/apis/berth.dev/v1alpha1", resource: "nicpolicies"},
	{path: "/apis/vpcresources.k8s.aws/v1beta1", resource: "securitygrouppolicies", others: fields{"spec"}},
	{path: "/apis/berth.dev/v1alpha1", resource: "egresses"},
	{path: "/apis/berth.dev/v1alpha1", resource: "egressclients"},
	{path: "/apis/berth.dev/v1alpha1", resource: "egressclientslices"},
}

// Limits of each kind.
const (
	page       = 500 // objects per request
	maxObjects = 20000
)

// objects adds the objects of a kind as YAML, in one or more files. A kind that the cluster
// does not serve is not an error: the mode determines which of Berth's kinds exist.
func (k *Cluster) objects(ctx context.Context, s *archive.Sink, kind kind) error {
	files := &documents{s: s, name: "cluster/" + kind.name()}
	err := each(ctx, k, kind, func(list metav1.TypeMeta, o map[string]any) error {
		o["apiVersion"], o["kind"] = list.APIVersion, strings.TrimSuffix(list.Kind, "List")
		if kind.ours && !isOurs(o) {
			return nil
		}
		if kind.others != nil && !isBerths(o) {
			o = slices.Concat(ofAll, kind.others).ofObject(o)
		}
		return files.add(shown(o))
	})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return errors.Join(err, files.end())
}

// each calls do for every object of a kind.
func each[T any](ctx context.Context, k *Cluster, kind kind, do func(metav1.TypeMeta, T) error) error {
	next, n := "", 0
	for {
		req := k.core.Get().AbsPath(kind.path, kind.resource)
		if kind.labels == ours && k.Namespace != "" {
			req = k.core.Get().AbsPath(kind.path, "namespaces", k.Namespace, kind.resource)
		}
		list, err := listPage[T](ctx, req.Param("labelSelector", kind.labels), next)
		if err != nil {
			return err
		}
		for _, o := range list.Items {
			if err := do(list.TypeMeta, o); err != nil {
				return err
			}
		}
		if n += len(list.Items); n >= maxObjects && list.Metadata.Continue != "" {
			return fmt.Errorf("more than %d objects", n)
		}
		if next = list.Metadata.Continue; next == "" {
			return nil
		}
	}
}

// list is a page of a list.
type list[T any] struct {
	metav1.TypeMeta
	Metadata metav1.ListMeta `json:"metadata"`
	Items    []T             `json:"items"`
}

// maxPage bounds a page, in bytes. Even a page of the largest objects is far smaller.
const maxPage = 64 << 20

func listPage[T any](ctx context.Context, req *rest.Request, next string) (l list[T], err error) {
	r, err := req.Param("limit", fmt.Sprint(page)).Param("continue", next).SetHeader("Accept", "application/json").Stream(ctx)
	if err != nil {
		return l, err
	}
	defer func() { _ = r.Close() }()
	return l, json.NewDecoder(io.LimitReader(r, maxPage)).Decode(&l)
}

// isBerths reports whether Berth's chart or operator created an object. It uses labels, as
// the names of other objects may contain "berth".
func isBerths(o map[string]any) bool {
	m, _ := o["metadata"].(map[string]any)
	labels, _ := m["labels"].(map[string]any)
	partOf, _ := labels["app.kubernetes.io/part-of"].(string)
	managedBy, _ := labels["app.kubernetes.io/managed-by"].(string)
	return partOf == "berth" || managedBy == v1alpha1.OwnerOperator
}

func isOurs(o map[string]any) bool {
	m, _ := o["metadata"].(map[string]any)
	name, _ := m["name"].(string)
	return strings.Contains(name, "berth") || isBerths(o)
}

// shown returns an object without secrets and managed fields.
func shown(o map[string]any) any {
	m, _ := o["metadata"].(map[string]any)
	delete(m, "managedFields")
	if annotations, ok := m["annotations"].(map[string]any); ok {
		delete(annotations, corev1.LastAppliedConfigAnnotation) // repeats the object (kubectl's last-applied annotation)
	}
	if spec, ok := o["spec"].(map[string]any); ok && o["kind"] == "NetworkAttachmentDefinition" {
		config, _ := spec["config"].(string)
		o["spec"] = map[string]any{"config": networkTypes(config)}
	}
	return redact.Value(withoutOthers(o))
}

// documents writes YAML documents to files within the maximum file size.
type documents struct {
	s    *archive.Sink
	name string
	buf  []byte
	n    int // files so far
}

func (d *documents) add(v any) error {
	doc, err := yaml.Marshal(v)
	if err != nil {
		return err
	}
	if len(d.buf) > 0 && int64(len(d.buf)+len(doc)+4) > d.s.Most() {
		if err := d.end(); err != nil {
			return err
		}
	}
	if len(d.buf) > 0 {
		d.buf = append(d.buf, "---\n"...)
	}
	d.buf = append(d.buf, doc...)
	return nil
}

func (d *documents) end() error {
	if len(d.buf) == 0 {
		return nil
	}
	d.n++
	name := d.name + ".yaml"
	if d.n > 1 {
		name = fmt.Sprintf("%s-%d.yaml", d.name, d.n)
	}
	err := d.s.Bytes(name, d.buf)
	d.buf = nil
	return err
}
