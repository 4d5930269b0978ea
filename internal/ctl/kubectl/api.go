package kubectl

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ctl/connect"
	"github.com/berthnet/berth/internal/ctl/diagnose"
)

// pageSize is the number of objects per list request. The API server may serve the further requests of a list from etcd
// instead of its cache, which takes several times as long: only the largest clusters should need these.
const pageSize = 10_000

// api reads objects as JSON, and lists of Pods and Nodes as protobuf, because a typed client for all kinds of Kubernetes
// would double the size of the program. A failed read is recorded in unread and does not stop the others.
type api struct {
	rest   server
	unread unread
	first  error // of the failed reads; nil if all succeeded
}

// server is the API server.
type server struct {
	rest.Interface
	page int // objects per list request
}

// err is the error of the first failed read, or nil.
func (a *api) err() error {
	if a.first == nil {
		return nil
	}
	return fmt.Errorf("could not be read: %w", a.first)
}

// unread lists failed reads with their reasons, as "WHAT: WHY".
type unread []string

// why returns the reason why a read failed, or "".
func (u unread) why(what string) string {
	i := slices.IndexFunc(u, func(why string) bool { return strings.HasPrefix(why, what) })
	if i < 0 {
		return ""
	}
	return u[i]
}

// texts returns the list for JSON or YAML output, where it is never null.
func (u unread) texts() []string { return append([]string{}, u...) }

// codecs decode a Status, the API server's form of an error.
var codecs = func() serializer.CodecFactory {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	return serializer.NewCodecFactory(s)
}()

// connect returns a client for the API server without contacting it.
func (p *program) connect() (*api, error) {
	cfg, err := p.config()
	if err != nil {
		return nil, err
	}
	cfg.GroupVersion, cfg.NegotiatedSerializer = &schema.GroupVersion{}, codecs.WithoutConversion()
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	c, err := rest.UnversionedRESTClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("create a client for the Kubernetes API: %w", err)
	}
	return &api{rest: server{c, pageSize}}, nil
}

// reach returns a client. It fails if the API server does not respond or rejects the credentials.
// Without this check, commands would print nothing but one error per list.
func (p *program) reach(ctx context.Context) (*api, error) {
	a, err := p.connect()
	if err != nil {
		return nil, err
	}
	var v struct{}
	err = into(ctx, a.rest.Get().AbsPath("/version"), &v)
	if status := apierrors.APIStatus(nil); err == nil || errors.As(err, &status) && !apierrors.IsUnauthorized(err) {
		return a, nil
	}
	return nil, fmt.Errorf("contact the Kubernetes API: %w", err)
}

// config returns a copy of the client configuration of the API server.
func (p *program) config() (*rest.Config, error) {
	cfg := p.Options.Config
	if cfg == nil {
		var err error
		if cfg, err = p.Flags.Config(); err != nil {
			return nil, err
		}
	}
	return connect.As("kubectl-berth", cfg), nil
}

// namespace returns the value of --namespace, or else the context's namespace, or else "default".
func (p *program) namespace() (string, error) {
	if p.Options.Config != nil {
		return cmp.Or(p.NamedNamespace(), "default"), nil
	}
	return p.Namespace()
}

// query holds the query parameters of a request.
type query map[string]string

func (q query) on(r *rest.Request) *rest.Request {
	for k, v := range q {
		r.Param(k, v)
	}
	return r
}

// all lists every object at a path, page by page, and returns the list's resource version.
// A kind that the cluster does not serve, as in node mode, has no objects.
func all[T any](ctx context.Context, a *api, what, path string, q query) (out []T, version string) {
	version = pages(ctx, a, what, path, q, func() { out = nil }, func(o *T) { out = append(out, *o) })
	return out, version
}

// pages calls each for every object at a path, page by page, and returns the list's resource version. It calls again
// before it starts over, and if the cluster does not serve the kind.
func pages[T any](ctx context.Context, a *api, what, path string, q query, again func(), each func(*T)) (version string) {
	token, mayRestart := "", true
	for {
		var list objectList[T]
		req := q.on(a.rest.Get().AbsPath(path)).Param("limit", strconv.Itoa(a.rest.page))
		if list.protobuf() != nil {
			req.SetHeader("Accept", runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON)
		}
		if token != "" {
			req.Param("continue", token)
		}
		err := into(ctx, req, &list)
		switch {
		case err == nil:
		case apierrors.IsResourceExpired(err) && mayRestart: // the continue token has expired: start again, once
			token, mayRestart = "", false
			again()
			continue
		case apierrors.IsNotFound(err):
			again()
			return ""
		default:
			a.note(what, err)
			return version
		}
		for i := range list.Items {
			each(&list.Items[i])
		}
		version = list.Metadata.ResourceVersion
		if token = list.Metadata.Continue; token == "" {
			return version
		}
	}
}

// objectList is a list as the API server sends it.
type objectList[T any] struct {
	Metadata metav1.ListMeta `json:"metadata"`
	Items    []T             `json:"items"`
}

// protobuf returns the function that decodes protobuf into the list, or nil for kinds that are read as JSON. Those of
// Kubernetes' own kinds with the most data have one, because JSON takes several times as long on both sides.
func (l *objectList[T]) protobuf() func([]byte) error {
	switch items := any(&l.Items).(type) {
	case *[]corev1.Pod:
		return func(b []byte) (err error) {
			var pods corev1.PodList
			err = pods.Unmarshal(b)
			l.Metadata, *items = pods.ListMeta, pods.Items
			return err
		}
	case *[]corev1.Node:
		return func(b []byte) (err error) {
			var nodes corev1.NodeList
			err = nodes.Unmarshal(b)
			l.Metadata, *items = nodes.ListMeta, nodes.Items
			return err
		}
	}
	return nil
}

// protobufMagic is the beginning of an object in protobuf, before its envelope, a runtime.Unknown
// (https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding).
var protobufMagic = []byte("k8s\x00")

// unmarshalProtobuf decodes an enveloped object into v, an objectList.
func unmarshalProtobuf(enveloped []byte, v any) error {
	list, ok := v.(interface{ protobuf() func([]byte) error })
	if !ok || list.protobuf() == nil {
		return errors.New("protobuf instead of JSON")
	}
	var o runtime.Unknown
	if err := o.Unmarshal(enveloped); err != nil {
		return err
	}
	return list.protobuf()(o.Raw)
}

// list is all without the resource version.
func list[T any](ctx context.Context, a *api, what, path string, q query) []T {
	out, _ := all[T](ctx, a, what, path, q)
	return out
}

func into(ctx context.Context, req *rest.Request, v any) error {
	result := req.Do(ctx)
	if err := result.Error(); err != nil { // unlike the error of Raw, it has the server's message
		return err
	}
	body, err := result.Raw()
	if err != nil {
		return err
	}
	if enveloped, ok := bytes.CutPrefix(body, protobufMagic); ok {
		err = unmarshalProtobuf(enveloped, v)
	} else {
		err = json.Unmarshal(body, v)
	}
	if err != nil {
		return fmt.Errorf("decode the API server's answer: %w", err)
	}
	return nil
}

// one reads an object that may not exist.
func one[T any](ctx context.Context, a *api, what, path string) diagnose.Fact[T] {
	var v T
	switch err := into(ctx, a.rest.Get().AbsPath(path), &v); {
	case err == nil:
		return diagnose.Of(v)
	case apierrors.IsNotFound(err):
		return diagnose.Fact[T]{}
	default:
		return diagnose.Unread[T](a.note(what, err))
	}
}

// note records a failed read and returns its text.
func (a *api) note(what string, err error) string {
	why := fmt.Sprintf("%s: %v", what, err)
	if a.first == nil {
		a.first = fmt.Errorf("%s: %w", what, err)
	}
	if !slices.Contains(a.unread, why) {
		a.unread = append(a.unread, why)
	}
	return why
}

// atOnce calls reads concurrently, each with an api of its own, and records their failures in the order of the reads.
func (a *api) atOnce(reads ...func(*api)) {
	parts := make([]api, len(reads))
	var wg sync.WaitGroup
	for i, read := range reads {
		parts[i].rest = a.rest
		wg.Go(func() { read(&parts[i]) })
	}
	wg.Wait()
	for _, part := range parts {
		if a.first == nil {
			a.first = part.first
		}
		for _, why := range part.unread {
			if !slices.Contains(a.unread, why) {
				a.unread = append(a.unread, why)
			}
		}
	}
}

// watched is one event of a watch.
type watched struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// watch calls each for every change at a path after a resource version, until the server
// ends the watch, and updates the version. It returns the server's error or that of each.
func watch(ctx context.Context, a *api, path string, q query, version *string, each func(corev1.Event) error) error {
	req := q.on(a.rest.Get().AbsPath(path)).Param("watch", "true").Param("allowWatchBookmarks", "true")
	if *version != "" {
		req.Param("resourceVersion", *version)
	}
	stream, err := req.Stream(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	for dec := json.NewDecoder(stream); ; {
		var w watched
		if err := dec.Decode(&w); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || ctx.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
		if w.Type == "ERROR" {
			var status metav1.Status
			if err := json.Unmarshal(w.Object, &status); err != nil {
				return err
			}
			return &apierrors.StatusError{ErrStatus: status}
		}
		var e corev1.Event
		if err := json.Unmarshal(w.Object, &e); err != nil {
			return err
		}
		*version = e.ResourceVersion
		if w.Type == "ADDED" || w.Type == "MODIFIED" {
			if err := each(e); err != nil {
				return err
			}
		}
	}
}

// join returns a path of escaped names.
func join(parts ...string) string {
	path := ""
	for _, p := range parts {
		path += "/" + url.PathEscape(p)
	}
	return path
}

// Paths of kinds.
const (
	nodesPath      = "/api/v1/nodes"
	namespacesPath = "/api/v1/namespaces"
	podsOfAll      = "/api/v1/pods"
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
	leasesPath     = "/apis/coordination.k8s.io/v1/namespaces"
)

// in returns the path of a resource of Berth in a namespace.
func in(namespace, resource string) string {
	return berthPath + "/namespaces" + join(namespace, resource)
}

func podsPath(namespace string) string   { return namespacesPath + join(namespace, "pods") }
func egressesIn(namespace string) string { return in(namespace, "egresses") }

// eventsIn returns the path of the events in a namespace or, if it is empty, of all.
func eventsIn(namespace string) string {
	if namespace == "" {
		return eventsPath
	}
	return namespacesPath + join(namespace, "events")
}

func (a *api) nodes(ctx context.Context) []corev1.Node {
	return list[corev1.Node](ctx, a, "Nodes", nodesPath, nil)
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
	return list[corev1.Pod](ctx, a, "pods of "+name, podsPath(namespace), q)
}

func (a *api) networks(ctx context.Context) []v1alpha1.NodeNetwork {
	return list[v1alpha1.NodeNetwork](ctx, a, "NodeNetworks", networksPath, nil)
}

func (a *api) network(ctx context.Context, node string) diagnose.Fact[v1alpha1.NodeNetwork] {
	return one[v1alpha1.NodeNetwork](ctx, a, "NodeNetworks", networksPath+join(node))
}

func (a *api) pools(ctx context.Context) []v1alpha1.AddressPool {
	return list[v1alpha1.AddressPool](ctx, a, "AddressPools", poolsPath, nil)
}

// blocks returns the blocks of one node or, if node is empty, of all.
func (a *api) blocks(ctx context.Context, node string) []v1alpha1.AddressBlock {
	q := query{}
	if node != "" {
		q["labelSelector"] = v1alpha1.LabelNode + "=" + v1alpha1.NodeLabel(node)
	}
	return list[v1alpha1.AddressBlock](ctx, a, "AddressBlocks", blocksPath, q)
}

// requests returns the requests of one node or, if node is empty, of all.
func (a *api) requests(ctx context.Context, node string) []v1alpha1.BlockRequest {
	q := query{}
	if node != "" {
		q["fieldSelector"] = "spec.nodeName=" + node
	}
	return list[v1alpha1.BlockRequest](ctx, a, "BlockRequests", requestsPath, q)
}

func (a *api) vpcs(ctx context.Context) []v1alpha1.VPC {
	return list[v1alpha1.VPC](ctx, a, "VPCs", vpcsPath, nil)
}

// nics returns the PodNICs at a path.
func (a *api) nics(ctx context.Context, path string, q query) []v1alpha1.PodNIC {
	return list[v1alpha1.PodNIC](ctx, a, "PodNICs", path, q)
}

func (a *api) egresses(ctx context.Context) []v1alpha1.Egress {
	return list[v1alpha1.Egress](ctx, a, "Egresses", egressesPath, nil)
}

// egressClients returns the EgressClients of all namespaces.
func (a *api) egressClients(ctx context.Context, q query) []v1alpha1.EgressClient {
	return list[v1alpha1.EgressClient](ctx, a, "EgressClients", clientsPath, q)
}

func (a *api) lease(ctx context.Context, namespace string) diagnose.Fact[coordinationv1.Lease] {
	return one[coordinationv1.Lease](ctx, a, "Leases", leasesPath+join(namespace, "leases", leaseName))
}

// events returns the events of a namespace, or of all if it is empty, that involve one object, or any
// object if name is empty, and the list's resource version.
func (a *api) events(ctx context.Context, namespace, kind, name string) (list []corev1.Event, version string) {
	q := query{}
	if name != "" {
		q["fieldSelector"] = "involvedObject.kind=" + kind + ",involvedObject.name=" + name
	}
	return all[corev1.Event](ctx, a, "Events", eventsIn(namespace), q)
}
