package apifake

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
)

type request struct {
	resource       schema.GroupVersionResource
	name           types.NamespacedName
	subresource    string
	metadata       bool // only that of objects is answered
	fields, labels string
}

// ServeHTTP implements http.Handler, but for watches.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	out, err := s.answer(r)
	code := http.StatusOK
	if err != nil {
		status, ok := errors.AsType[*apierrors.StatusError](err)
		if !ok {
			status = apierrors.NewBadRequest(err.Error())
		}
		o := status.Status()
		o.Kind, o.APIVersion = "Status", "v1"
		out, code = o, int(o.Code)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(out)
}

func (s *Server) answer(r *http.Request) (any, error) {
	if out := s.discovery(r.URL.Path); out != nil {
		return out, nil
	}
	q, err := s.parse(r)
	if err != nil {
		return nil, err
	}
	body, err := readBody(r)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method == http.MethodGet && q.name.Name == "" {
		return s.list(q)
	}
	o, err := s.do(r, q, body)
	if err != nil {
		return nil, err
	}
	return q.shown(o).Object, nil
}

// do answers a request about one object. s.mu is held.
func (s *Server) do(r *http.Request, q request, body []byte) (*unstructured.Unstructured, error) {
	if r.Method == http.MethodPost {
		o := &unstructured.Unstructured{}
		if err := json.Unmarshal(body, &o.Object); err != nil {
			return nil, err
		}
		o.SetNamespace(q.name.Namespace)
		return s.create(q.resource, o)
	}
	o, err := s.find(q.resource, q.name)
	if r.Method == http.MethodPatch && r.Header.Get("Content-Type") == string(types.ApplyPatchType) {
		return s.apply(q, o, r.URL.Query().Get("fieldManager"), body)
	}
	if err != nil {
		return nil, err
	}
	switch r.Method {
	case http.MethodGet:
		return o.Unstructured, nil
	case http.MethodPut:
		want := &unstructured.Unstructured{}
		if err := json.Unmarshal(body, &want.Object); err != nil {
			return nil, err
		}
		return s.update(q.resource, o, want, q.subresource)
	case http.MethodPatch:
		want, err := merged(o.Unstructured, r.Header.Get("Content-Type"), body)
		if err != nil {
			return nil, err
		}
		return s.update(q.resource, o, want, q.subresource)
	case http.MethodDelete:
		var options metav1.DeleteOptions
		if len(body) > 0 {
			if err := json.Unmarshal(body, &options); err != nil {
				return nil, err
			}
		}
		return s.remove(q.resource, o, options.Preconditions)
	}
	return nil, apierrors.NewMethodNotSupported(s.kinds[q.resource].groupResource(), r.Method)
}

// readBody returns a body as JSON.
func readBody(r *http.Request) ([]byte, error) {
	if r.Body == nil {
		return nil, nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || !strings.Contains(r.Header.Get("Content-Type"), "protobuf") {
		return body, err
	}
	o, kind, err := clientscheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, err
	}
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, err
	}
	m["apiVersion"], m["kind"] = kind.GroupVersion().String(), kind.Kind
	return json.Marshal(m)
}

// parse reads a path: /api/v1 or /apis/GROUP/VERSION, then perhaps namespaces/NAME, then
// a resource, perhaps a name, perhaps a subresource.
func (s *Server) parse(r *http.Request) (q request, err error) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	gv := schema.GroupVersion{Version: "v1"}
	if len(parts) > 1 && parts[0] == "api" {
		parts = parts[2:]
	} else if len(parts) > 2 {
		gv = schema.GroupVersion{Group: parts[1], Version: parts[2]}
		parts = parts[3:]
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		q.name.Namespace = parts[1]
		parts = parts[2:]
	}
	if len(parts) == 0 {
		return q, apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, schema.GroupResource{}, "", r.URL.Path, 0, false)
	}
	q.resource = gv.WithResource(parts[0])
	if _, ok := s.kinds[q.resource]; !ok {
		return q, apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, q.resource.GroupResource(), "", "there is no such resource", 0, false)
	}
	if len(parts) > 1 {
		q.name.Name = parts[1]
	}
	if len(parts) > 2 {
		q.subresource = parts[2]
	}
	q.metadata = strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
	q.fields, q.labels = r.URL.Query().Get("fieldSelector"), r.URL.Query().Get("labelSelector")
	return q, nil
}

// shown is an object as a request asked for it.
func (q request) shown(o *unstructured.Unstructured) *unstructured.Unstructured {
	if !q.metadata {
		return o
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": o.Object["metadata"],
	}}
}

// selector returns whether a request selects an object.
func (q request) selector() (func(o *unstructured.Unstructured) bool, error) {
	f, err := fields.ParseSelector(q.fields)
	if err != nil {
		return nil, err
	}
	l, err := labels.Parse(q.labels)
	if err != nil {
		return nil, err
	}
	return func(o *unstructured.Unstructured) bool {
		return o != nil && (q.name.Namespace == "" || o.GetNamespace() == q.name.Namespace) && l.Matches(labels.Set(o.GetLabels())) &&
			!slices.ContainsFunc(f.Requirements(), func(r fields.Requirement) bool {
				return (field(o.Object, r.Field) == r.Value) != (r.Operator != "!=")
			})
	}, nil
}

// list answers a list of all. s.mu is held.
func (s *Server) list(q request) (any, error) {
	selects, err := q.selector()
	if err != nil {
		return nil, err
	}
	items := []any{}
	for _, name := range sortedNames(s.objects[q.resource]) {
		if o := s.objects[q.resource][name].Unstructured; selects(o) {
			items = append(items, q.shown(o).Object)
		}
	}
	k := s.kinds[q.resource]
	out := map[string]any{
		"apiVersion": k.GroupVersion().String(), "kind": k.Kind + "List",
		"metadata": map[string]any{"resourceVersion": strconv.FormatInt(s.version, 10)}, "items": items,
	}
	if q.metadata {
		out["apiVersion"], out["kind"] = "meta.k8s.io/v1", "PartialObjectMetadataList"
	}
	return out, nil
}

func sortedNames(objects map[types.NamespacedName]*object) []types.NamespacedName {
	return slices.SortedFunc(maps.Keys(objects), func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
}

// discovery lists the kinds; nil for any other path.
func (s *Server) discovery(path string) any {
	path = strings.Trim(path, "/")
	switch {
	case path == "api":
		return metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
	case path == "apis":
		list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		seen := map[schema.GroupVersion]bool{{Version: "v1"}: true}
		for r := range s.kinds {
			if gv := r.GroupVersion(); !seen[gv] {
				seen[gv] = true
				v := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
				list.Groups = append(list.Groups, metav1.APIGroup{Name: gv.Group, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v})
			}
		}
		return list
	}
	var gv schema.GroupVersion
	switch parts := strings.Split(path, "/"); {
	case path == "api/v1":
		gv.Version = "v1"
	case len(parts) == 3 && parts[0] == "apis":
		gv = schema.GroupVersion{Group: parts[1], Version: parts[2]}
	case len(parts) == 2 && parts[0] == "apis":
		for r := range s.kinds {
			if r.Group == parts[1] {
				v := metav1.GroupVersionForDiscovery{GroupVersion: r.GroupVersion().String(), Version: r.Version}
				return metav1.APIGroup{TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: r.Group,
					Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v}
			}
		}
		return nil
	default:
		return nil
	}
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv.String()}
	verbs := metav1.Verbs{"get", "list", "watch", "create", "update", "patch", "delete"}
	for r, k := range s.kinds {
		if r.GroupVersion() != gv {
			continue
		}
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: r.Resource, Kind: k.Kind, Namespaced: !k.Cluster, Verbs: verbs})
		if k.Status {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: r.Resource + "/status", Kind: k.Kind, Namespaced: !k.Cluster, Verbs: verbs[4:6]})
		}
	}
	return list
}
