package nodenetwork

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/version"
)

const (
	resource = "nodenetworks"

	// requestTimeout bounds one request; the watch is none.
	requestTimeout = 10 * time.Second
)

// apiClient makes the requests that a daemon needs, for the one object. It is
// client-go's REST client with one type, as a daemon has 40 MiB to live in.
type apiClient struct {
	rest  rest.Interface
	param runtime.ParameterCodec
	name  string
}

// newClient reads a kubeconfig file, or what the cluster gives to a pod.
func newClient(kubeconfig, name string) (*apiClient, error) {
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
	return clientFor(cfg, name)
}

func clientFor(cfg *rest.Config, name string) (*apiClient, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	cfg = rest.CopyConfig(cfg)
	cfg.GroupVersion = &v1alpha1.GroupVersion
	cfg.APIPath = "/apis"
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	cfg.UserAgent = "berthd/" + version.String()
	cfg.QPS = -1 // the loop paces itself
	rc, err := rest.RESTClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("client of the Kubernetes API: %w", err)
	}
	return &apiClient{rest: rc, param: runtime.NewParameterCodec(scheme), name: name}, nil
}

// narrow restricts a list or watch to the one object.
func (c *apiClient) narrow(o *metav1.ListOptions) {
	o.FieldSelector = fields.OneTermEqualSelector("metadata.name", c.name).String()
}

// A list is never answered from an API server's cache that may be old, be it
// asked for as such or as the beginning of a watch: a daemon that was restarted
// must not see the object as it was before it ended, nor one that lost its watch
// see it as it was before the reply to a report. What was unassigned since would
// be a pod's again.
func (c *apiClient) list(ctx context.Context, o metav1.ListOptions) (*v1alpha1.NodeNetworkList, error) {
	c.narrow(&o)
	if o.ResourceVersion == "0" {
		o.ResourceVersion, o.ResourceVersionMatch = "", ""
	}
	out := &v1alpha1.NodeNetworkList{}
	return out, c.rest.Get().Resource(resource).VersionedParams(&o, c.param).Timeout(requestTimeout).Do(ctx).Into(out)
}

func (c *apiClient) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	c.narrow(&o)
	o.Watch = true
	if o.SendInitialEvents != nil && *o.SendInitialEvents {
		o.ResourceVersion = "" // the most recent (Kubernetes API concepts, "Streaming lists")
	}
	return c.rest.Get().Resource(resource).VersionedParams(&o, c.param).Watch(ctx)
}

func (c *apiClient) get(ctx context.Context) (*v1alpha1.NodeNetwork, error) {
	out := &v1alpha1.NodeNetwork{}
	return out, c.rest.Get().Resource(resource).Name(c.name).Timeout(requestTimeout).Do(ctx).Into(out)
}

func (c *apiClient) create(ctx context.Context, o *v1alpha1.NodeNetwork) (*v1alpha1.NodeNetwork, error) {
	out := &v1alpha1.NodeNetwork{}
	return out, c.rest.Post().Resource(resource).Param("fieldManager", v1alpha1.OwnerDaemon).Body(o).Timeout(requestTimeout).Do(ctx).Into(out)
}

// remove deletes exactly the object that was read, and only if nobody changed
// it since.
func (c *apiClient) remove(ctx context.Context, o *v1alpha1.NodeNetwork) error {
	opts := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion}}
	return c.rest.Delete().Resource(resource).Name(c.name).Body(opts).Timeout(requestTimeout).Do(ctx).Error()
}

// applied is the daemon's part of the object: nothing else is in the request,
// so nothing else becomes its.
type applied struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        appliedMeta   `json:"metadata"`
	Status          appliedStatus `json:"status"`
}

type appliedMeta struct {
	Name            string    `json:"name"`
	UID             types.UID `json:"uid"`
	ResourceVersion string    `json:"resourceVersion"`
}

type appliedStatus struct {
	IPAM v1alpha1.IPAMStatus `json:"ipam"`
}

// report writes the daemon's part of o's status, unless anybody wrote to the
// object since o was read: then the error is a conflict.
func (c *apiClient) report(ctx context.Context, o *v1alpha1.NodeNetwork, s v1alpha1.IPAMStatus) (*v1alpha1.NodeNetwork, error) {
	body, err := json.Marshal(applied{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeNetwork"},
		Metadata: appliedMeta{Name: c.name, UID: o.UID, ResourceVersion: o.ResourceVersion},
		Status:   appliedStatus{s},
	})
	if err != nil {
		return nil, fmt.Errorf("encode the report: %w", err)
	}
	out := &v1alpha1.NodeNetwork{}
	return out, c.rest.Patch(types.ApplyPatchType).Resource(resource).Name(c.name).SubResource("status").
		Param("fieldManager", v1alpha1.OwnerDaemon).Param("force", "true").Body(body).Timeout(requestTimeout).Do(ctx).Into(out)
}

// node is what matters of a Node.
type node struct {
	Metadata struct {
		Name string    `json:"name"`
		UID  types.UID `json:"uid"`
	} `json:"metadata"`
	Spec struct {
		ProviderID string `json:"providerID"`
	} `json:"spec"`
}

// getNode returns the Node of the same name, or nil without one.
func (c *apiClient) getNode(ctx context.Context) (*node, error) {
	data, err := c.rest.Get().AbsPath("/api/v1/nodes", c.name).SetHeader("Accept", "application/json").Timeout(requestTimeout).Do(ctx).Raw()
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read Node %s: %w", c.name, err)
	}
	n := &node{}
	if err := json.Unmarshal(data, n); err != nil {
		return nil, fmt.Errorf("read Node %s: %w", c.name, err)
	}
	return n, nil
}
