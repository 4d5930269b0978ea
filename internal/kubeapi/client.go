// Package kubeapi is a daemon's access to the Kubernetes API: client-go's REST client with Berth's own kinds, metadata of
// other kinds, and reflectors without a cache. A daemon has 40 MiB of memory (docs/contribute/design.md, "Budgets"), too little for
// typed clients of all of Kubernetes, or for caches of objects of which a few bytes matter.
//
//	client.go   the requests
//	follow.go   lists and watches
//	mirror.go   the state that a part of the daemon keeps of objects, and outages
//	report.go   the status that a part of the daemon writes into objects
//	events.go   Events of Pods
package kubeapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/version"
)

// Timeout bounds one request other than a watch.
const Timeout = 10 * time.Second

// Client makes requests to the API server. It is safe for concurrent use. It neither retries nor delays requests.
type Client struct {
	rest      rest.Interface // of berth.dev
	meta      metadata.Interface
	param     runtime.ParameterCodec
	namespace string // of the objects of requests; empty: none
}

// In returns a client for objects in a namespace.
func (c *Client) In(namespace string) *Client {
	in := *c
	in.namespace = namespace
	return &in
}

// Config reads a kubeconfig file or, without one, the configuration of a pod.
func Config(kubeconfig string) (*rest.Config, error) {
	var cfg *rest.Config
	var err error
	if kubeconfig == "" {
		cfg, err = rest.InClusterConfig()
	} else {
		cfg, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("find the Kubernetes API server: %w; set --kubeconfig outside a pod", err)
	}
	return cfg, nil
}

// Open returns a client by Config.
func Open(kubeconfig string) (*Client, error) {
	cfg, err := Config(kubeconfig)
	if err != nil {
		return nil, err
	}
	return New(cfg)
}

// New returns a client. It makes no request yet.
func New(cfg *rest.Config) (*Client, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	cfg = rest.CopyConfig(cfg)
	cfg.UserAgent = cmp.Or(cfg.UserAgent, "berthd/"+version.String())
	cfg.QPS = -1 // callers pace themselves
	meta, err := metadata.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("client of the Kubernetes API: %w", err)
	}
	cfg.GroupVersion = &v1alpha1.GroupVersion
	cfg.APIPath = "/apis"
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	rc, err := rest.RESTClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("client of the Kubernetes API: %w", err)
	}
	return &Client{rest: rc, meta: meta, param: runtime.NewParameterCodec(scheme)}, nil
}

// Get reads an object of berth.dev, not from a cache.
func (c *Client) Get(ctx context.Context, resource, name string, into runtime.Object) error {
	return c.rest.Get().NamespaceIfScoped(c.namespace, c.namespace != "").Resource(resource).Name(name).Timeout(Timeout).Do(ctx).Into(into)
}

// Create creates an object of berth.dev, with the daemon as the field manager.
func (c *Client) Create(ctx context.Context, resource string, o, into runtime.Object) error {
	return c.rest.Post().NamespaceIfScoped(c.namespace, c.namespace != "").Resource(resource).Param("fieldManager", v1alpha1.OwnerDaemon).Body(o).Timeout(Timeout).Do(ctx).Into(into)
}

// Patch changes an object of berth.dev, or its subresource if that is not empty, with the daemon as the field manager. An
// apply also takes over fields of other managers. into may be nil.
func (c *Client) Patch(ctx context.Context, kind types.PatchType, resource, name, subresource string, body []byte, into runtime.Object) error {
	r := c.rest.Patch(kind).NamespaceIfScoped(c.namespace, c.namespace != "").Resource(resource).Name(name).Param("fieldManager", v1alpha1.OwnerDaemon).Body(body).Timeout(Timeout)
	if subresource != "" {
		r = r.SubResource(subresource)
	}
	if kind == types.ApplyPatchType {
		r = r.Param("force", "true")
	}
	if into == nil {
		return r.Do(ctx).Error()
	}
	return r.Do(ctx).Into(into)
}

// Delete deletes the object of berth.dev that has this UID and, unless version is empty, this resourceVersion.
func (c *Client) Delete(ctx context.Context, resource, name string, uid types.UID, version string) error {
	opts := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
	if version != "" {
		opts.Preconditions.ResourceVersion = &version
	}
	return c.rest.Delete().NamespaceIfScoped(c.namespace, c.namespace != "").Resource(resource).Name(name).Body(opts).Timeout(Timeout).Do(ctx).Error()
}

// Node reads the Node of a name into a value with the fields that the caller needs, by their JSON names. If there is none
// the error is a NotFound.
func (c *Client) Node(ctx context.Context, name string, into any) error {
	data, err := c.rest.Get().AbsPath("/api/v1/nodes", name).SetHeader("Accept", "application/json").Timeout(Timeout).Do(ctx).Raw()
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		return fmt.Errorf("read Node %s: %w", name, err)
	}
	return nil
}

// ConfigMap reads the data of a ConfigMap. If there is none the error is a NotFound.
func (c *Client) ConfigMap(ctx context.Context, namespace, name string) (map[string]string, error) {
	data, err := c.rest.Get().AbsPath("/api/v1/namespaces", namespace, "configmaps", name).SetHeader("Accept", "application/json").Timeout(Timeout).Do(ctx).Raw()
	var read struct {
		Data map[string]string `json:"data"`
	}
	if err == nil {
		err = json.Unmarshal(data, &read)
	}
	if err != nil {
		return nil, fmt.Errorf("read ConfigMap %s/%s: %w", namespace, name, err)
	}
	return read.Data, nil
}

// Cancelled reports whether a request failed because its context was cancelled, since the daemon is stopping.
func Cancelled(err error) bool { return errors.Is(err, context.Canceled) }

// Advice returns, for an error of a list or a watch of Berth's kinds, a reason for metrics and a message with
// the remedy.
func Advice(err error) (reason, message string) {
	switch {
	case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
		return "permission", fmt.Sprintf("the Kubernetes API refuses berthd: %v: apply deploy/chart", err)
	case apierrors.IsNotFound(err): // a list is always found unless its kind is not served
		return "unreachable", fmt.Sprintf("the Kubernetes API lacks kinds of Berth's: %v: apply deploy/chart", err)
	}
	return "unreachable", fmt.Sprintf("the Kubernetes API cannot be used: %v: is the API server reachable from this node?", err)
}
