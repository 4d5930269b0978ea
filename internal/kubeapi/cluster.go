package kubeapi

import (
	"context"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Metadata is the metadata of an object.
type Metadata = metav1.PartialObjectMetadata

// Kind is a selection of Kubernetes' own objects that are watched together.
type Kind struct {
	resource string
	fields   string // a selector
	labels   bool   // with their labels
}

// Namespaces selects all Namespaces; LabelledNamespaces does with their labels.
var (
	Namespaces         = Kind{resource: "namespaces"}
	LabelledNamespaces = Kind{resource: "namespaces", labels: true}
)

// NodeNamed selects the Node of a name.
func NodeNamed(name string) Kind {
	return Kind{resource: "nodes", fields: FieldEquals("metadata.name", name)}
}

// LabelledNode selects that Node, with its labels.
func LabelledNode(name string) Kind {
	k := NodeNamed(name)
	k.labels = true
	return k
}

// Cluster passes the metadata of Kubernetes' own objects to any number of handlers. Each kind is watched once.
type Cluster struct {
	api   *Client
	feeds map[Kind]*feed
}

// feed is the handlers of a kind, and the annotations that they read.
type feed struct {
	handlers    []Handler[*Metadata]
	annotations []string
}

// NewCluster returns a Cluster that follows nothing yet.
func NewCluster(api *Client) *Cluster { return &Cluster{api, map[Kind]*feed{}} }

// Follow has Run pass the objects of a kind to h, with at least these annotations. It is to be called before Run.
func (c *Cluster) Follow(k Kind, h Handler[*Metadata], annotations ...string) {
	f := c.feeds[k]
	if f == nil {
		f = &feed{}
		c.feeds[k] = f
	}
	f.handlers, f.annotations = append(f.handlers, h), append(f.annotations, annotations...)
}

// Run follows until ctx ends.
func (c *Cluster) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for k, f := range c.feeds {
		resource := schema.GroupVersionResource{Version: "v1", Resource: k.resource}
		wg.Go(func() {
			Follow(ctx, k.resource, c.api.metadata(resource, k.fields, bare(k.labels, f.annotations...)), f.all())
		})
	}
	wg.Wait()
}

// all returns a handler that calls every handler.
func (f *feed) all() Handler[*Metadata] {
	each := func(tell func(Handler[*Metadata])) {
		for _, h := range f.handlers {
			tell(h)
		}
	}
	return Handler[*Metadata]{
		Put:     func(o *Metadata) { each(func(h Handler[*Metadata]) { h.Put(o) }) },
		Gone:    func(o *Metadata) { each(func(h Handler[*Metadata]) { h.Gone(o) }) },
		All:     func(list []*Metadata) { each(func(h Handler[*Metadata]) { h.All(slices.Clone(list)) }) },
		Outcome: func(err error) { each(func(h Handler[*Metadata]) { h.Outcome(err) }) },
	}
}
