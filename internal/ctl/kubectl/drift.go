package kubectl

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ctl/view"
)

// Only users who may read Helm's record of the release, with the rendered objects, can find drift of all objects: the record is
// a Secret, and neither berthd nor the operator may list Secrets or read roles and admission policies. The programs themselves,
// and users who may list their pods, find drift of their arguments and environment (config.Drift).

// difference is a field of an object, or a whole object, that differs from the expected one.
type difference struct {
	object string // such as "DaemonSet kube-system/berthd"
	field  string // empty for the whole object
	text   string
}

// object is an API object, or a part of one, decoded from JSON.
type object = map[string]any

// part returns the object in a field of another, or nil.
func part(o any, path ...string) object {
	for _, name := range path {
		m, _ := o.(object)
		o = m[name]
	}
	m, _ := o.(object)
	return m
}

// text returns a field of an object, or "" if it is not text.
func text(o object, name string) string {
	s, _ := o[name].(string)
	return s
}

// idOf names an object in messages.
func idOf(o object) string {
	meta := part(o, "metadata")
	if ns := text(meta, "namespace"); ns != "" {
		return fmt.Sprintf("%s %s/%s", text(o, "kind"), ns, text(meta, "name"))
	}
	return text(o, "kind") + " " + text(meta, "name")
}

// comparison collects the differences of one object.
type comparison struct {
	object string
	exact  bool // an additional field is a difference
	found  []difference
}

func (c *comparison) differs(field string, want, got any, by string) {
	var text string
	switch {
	case got == nil:
		text = "missing, expected " + brief(want)
	case want == nil:
		text = brief(got) + ", expected to be unset"
	default:
		text = brief(got) + ", expected " + brief(want)
	}
	if by != "" {
		text += " (set by " + by + ")"
	}
	if !slices.ContainsFunc(c.found, func(d difference) bool { return d.field == field }) {
		c.found = append(c.found, difference{c.object, field, text})
	}
}

// maxBrief is the maximum length of a value in a message, in characters.
const maxBrief = 80

func brief(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	if r := []rune(string(b)); len(r) > maxBrief {
		return string(r[:maxBrief]) + "..."
	}
	return string(b)
}

// compare adds the differences between an expected value and the one found. Empty values that the API server drops, and values
// that it normalizes, are equal.
func (c *comparison) compare(field string, want, got any) {
	switch want := want.(type) {
	case nil:
		if c.exact && !empty(got) {
			c.differs(field, want, got, "")
		}
		return
	case object:
		got, ok := got.(object)
		if !ok && len(want) > 0 {
			break
		}
		names := slices.Sorted(maps.Keys(want))
		if c.exact {
			names = slices.Compact(slices.Sorted(slices.Values(append(names, slices.Collect(maps.Keys(got))...))))
		}
		for _, name := range names {
			c.compare(below(field, name), want[name], got[name])
		}
		return
	case []any:
		if got, ok := got.([]any); ok && c.compareLists(field, want, got) {
			return
		}
	}
	if !reflect.DeepEqual(want, got) && !(empty(want) && got == nil) && !sameQuantity(field, want, got) {
		c.differs(field, want, got, "")
	}
}

// compareLists compares lists by the elements' key or, if they have none, by position. It returns false if the lists can
// only be reported as a whole.
func (c *comparison) compareLists(field string, want, got []any) bool {
	key := keyOf(want, got)
	if key == "" {
		if len(want) != len(got) {
			return false
		}
		for i := range want {
			c.compare(fmt.Sprintf("%s[%d]", field, i), want[i], got[i])
		}
		return true
	}
	wanted, found := keyed(want, key), keyed(got, key)
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		at := element(field, key, name)
		if e, ok := found[name]; ok {
			c.compare(at, wanted[name], e)
		} else {
			c.differs(at, wanted[name], nil, "")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if _, ok := wanted[name]; !ok {
			c.differs(element(field, key, name), nil, found[name], "")
		}
	}
	return true
}

// below returns the path of a field of an object.
func below(field, name string) string {
	switch {
	case strings.ContainsAny(name, "./"):
		return field + "[" + name + "]"
	case field == "":
		return name
	}
	return field + "." + name
}

func element(field, key, name string) string { return fmt.Sprintf("%s[%s=%s]", field, key, name) }

// keyOf returns the field that identifies the elements of both lists, or "".
func keyOf(lists ...[]any) string {
	for _, key := range []string{"mountPath", "containerPort", "name"} {
		if !slices.ContainsFunc(lists, func(list []any) bool { return len(keyed(list, key)) != len(list) }) {
			return key
		}
	}
	return ""
}

// keyed returns the elements of a list by key, without those that have none.
func keyed(list []any, key string) map[string]any {
	out := map[string]any{}
	for _, e := range list {
		if m, ok := e.(object); ok && m[key] != nil {
			out[fmt.Sprint(m[key])] = e
		}
	}
	return out
}

// empty reports whether the API server may drop a value.
func empty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case object:
		return !slices.ContainsFunc(slices.Collect(maps.Values(v)), func(v any) bool { return !empty(v) })
	case []any:
		return len(v) == 0
	default:
		return reflect.ValueOf(v).IsZero()
	}
}

// sameQuantity reports whether two values are the same amount of a resource, such as 0.5 and 500m.
func sameQuantity(field string, want, got any) bool {
	if !strings.Contains(field, ".resources.") && !strings.HasSuffix(field, ".sizeLimit") {
		return false
	}
	a, err := resource.ParseQuantity(fmt.Sprint(want))
	b, err2 := resource.ParseQuantity(fmt.Sprint(got))
	return err == nil && err2 == nil && a.Cmp(b) == 0
}

// managedFields returns the owners of an object's fields.
func managedFields(o object) (out []metav1.ManagedFieldsEntry) {
	b, err := json.Marshal(part(o, "metadata")["managedFields"])
	if err != nil || json.Unmarshal(b, &out) != nil {
		return nil
	}
	return out
}

// fieldsOf returns an entry's fields.
func fieldsOf(e metav1.ManagedFieldsEntry) (out object) {
	if e.FieldsV1 == nil || json.Unmarshal(e.FieldsV1.GetRawBytes(), &out) != nil {
		return nil
	}
	return out
}

// byBerth reports whether an entry of managed fields belongs to Berth or Kubernetes itself, or to a status.
func byBerth(e metav1.ManagedFieldsEntry) bool {
	return e.Subresource == "status" || slices.Contains([]string{v1alpha1.OwnerDaemon, v1alpha1.OwnerOperator, "kube-controller-manager", "kube-apiserver"}, e.Manager)
}

// installed reports whether an owner of fields created the object from the chart. Such an owner may also own fields with the
// API server's defaults.
func installed(fields object) bool {
	of := part(fields, "f:metadata")
	return part(of, "f:annotations")["f:meta.helm.sh/release-name"] != nil || part(of, "f:labels")["f:app.kubernetes.io/instance"] != nil
}

// incidental are annotations that kubectl and Kubernetes set on their own, or that restart pods.
var incidental = []string{
	"kubectl.kubernetes.io/last-applied-configuration", "kubectl.kubernetes.io/restartedAt", "deployment.kubernetes.io/revision", "deprecated.daemonset.template.generation",
}

// added adds fields that another owner has set and the chart has not.
func (c *comparison) added(field string, fields object, want, got any, by string) {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		kind, name, _ := strings.Cut(name, ":")
		below, nextWant, nextGot := below(field, name), part(want)[name], part(got)[name]
		of := part(fields, kind+":"+name)
		switch {
		case kind == "k":
			var keys object
			if json.Unmarshal([]byte(name), &keys) != nil {
				continue
			}
			below, nextWant, nextGot = field+name, having(want, keys), having(got, keys)
			for _, key := range slices.Sorted(maps.Keys(keys)) {
				if len(keys) == 1 || key == "containerPort" { // the path that compare gives it
					below = element(field, key, fmt.Sprint(keys[key]))
				}
			}
		case kind != "f" || slices.Contains(incidental, name):
			continue
		case field == "" && name == "status", field == "metadata" && name != "labels" && name != "annotations":
			continue
		}
		c.addedField(below, name, of, nextWant, nextGot, by)
	}
}

// addedField is added for the field of that name.
func (c *comparison) addedField(field, name string, fields object, want, got any, by string) {
	switch {
	case got == nil:
	case want == nil && (name == "annotations" || name == "labels") && len(fields) > 0: // others, such as Helm, have added some, too
		c.added(field, fields, object{}, got, by)
	case want == nil && !empty(got) && !onlyIncidental(got):
		c.differs(field, nil, got, by)
	case want != nil && len(fields) > 0:
		c.added(field, fields, want, got, by)
	case want != nil: // a map that is owned as a whole, such as a nodeSelector
		c.addedKeys(field, want, got, by)
	}
}

// addedKeys adds the keys of a map that the chart does not set.
func (c *comparison) addedKeys(field string, want, got any, by string) {
	for _, name := range slices.Sorted(maps.Keys(part(got))) {
		if v := part(got)[name]; part(want)[name] == nil && !empty(v) {
			c.differs(field+"."+name, nil, v, by)
		}
	}
}

// onlyIncidental reports whether a value has nothing but incidental annotations.
func onlyIncidental(v any) bool {
	m, ok := v.(object)
	if a := part(m, "annotations"); ok && len(m) == 1 && a != nil {
		m = a
	}
	return ok && len(m) > 0 && !slices.ContainsFunc(slices.Collect(maps.Keys(m)), func(name string) bool { return !slices.Contains(incidental, name) })
}

// having returns the element of a list that has fields, or nil.
func having(list any, keys object) any {
	all, _ := list.([]any)
	for _, e := range all {
		m, _ := e.(object)
		if !slices.ContainsFunc(slices.Collect(maps.Keys(keys)), func(k string) bool {
			return !reflect.DeepEqual(m[k], keys[k]) && !(k == "protocol" && m[k] == nil) // TCP by default
		}) {
			return e
		}
	}
	return nil
}

// driftOf compares an object of the release with the one that the cluster has.
func driftOf(want, got object) []difference {
	c := comparison{object: idOf(want)}
	if got == nil {
		return []difference{{c.object, "", "missing"}}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		switch name {
		case "apiVersion", "kind", "status":
		case "data", "stringData":
			if want["kind"] != "Secret" { // others may fill it, and its data must not be printed
				c.compare(name, want[name], got[name])
			}
		case "metadata":
			for _, name := range []string{"labels", "annotations"} {
				c.compare("metadata."+name, part(want, "metadata")[name], part(got, "metadata")[name])
			}
		default:
			c.compare(name, want[name], got[name])
		}
	}
	for _, e := range managedFields(got) {
		if fields := fieldsOf(e); !byBerth(e) && !installed(fields) && want["kind"] != "Secret" {
			c.added("", fields, want, got, e.Manager)
		}
	}
	return c.found
}

// decodeObjects reads the objects of a file of YAML documents.
func decodeObjects(in []byte) (out []object, err error) {
	for r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(in))); ; {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, err
		}
		var o object
		if err := yaml.Unmarshal(doc, &o); err != nil {
			return nil, err
		}
		if len(o) > 0 { // zero: comments only
			out = append(out, o)
		}
	}
}

// drift compares the objects of the release with the cluster's.
func (a *api) drift(ctx context.Context, s *settings) ([]difference, error) {
	wanted, err := decodeObjects([]byte(s.release.Manifest))
	if err != nil {
		return nil, fmt.Errorf("manifest of release %s: %w", s.release.Name, err)
	}
	r := released{api: a, s: s, kinds: map[string]*metav1.APIResourceList{}, lists: map[string]map[string]object{}}
	var out []difference
	for _, want := range wanted {
		got, err := r.get(ctx, want)
		if err != nil {
			return nil, err
		}
		out = append(out, driftOf(want, got)...)
	}
	return out, nil
}

// released reads objects of a release, one kind at a time: one request for each object would take seconds over a slow connection.
type released struct {
	api   *api
	s     *settings
	kinds map[string]*metav1.APIResourceList // by API version
	lists map[string]map[string]object       // by path and name
}

// get returns the cluster's object of the same kind and name, or nil if there is none. It sets the namespace of want.
func (r *released) get(ctx context.Context, want object) (object, error) {
	version := text(want, "apiVersion")
	prefix := "/apis/" + version
	if !strings.Contains(version, "/") {
		prefix = "/api/" + version
	}
	if r.kinds[version] == nil {
		r.kinds[version] = cmp.Or(one[metav1.APIResourceList](ctx, r.api, "kinds of "+version, prefix).Value, &metav1.APIResourceList{})
	}
	meta, resources := part(want, "metadata"), r.kinds[version].APIResources
	i := slices.IndexFunc(resources, func(k metav1.APIResource) bool { return k.Kind == want["kind"] && !strings.Contains(k.Name, "/") })
	if i < 0 || meta == nil {
		return nil, r.api.err() // the kind does not exist
	}
	if resources[i].Namespaced {
		meta["namespace"] = cmp.Or(text(meta, "namespace"), r.s.namespace)
		prefix += "/namespaces" + join(text(meta, "namespace"))
	}
	path := prefix + join(resources[i].Name)
	if r.lists[path] == nil {
		r.lists[path] = map[string]object{}
		for _, o := range list[object](ctx, r.api, resources[i].Name, path, query{"labelSelector": "app.kubernetes.io/instance=" + r.s.release.Name}) {
			r.lists[path][text(part(o, "metadata"), "name")] = o
		}
	}
	name := text(meta, "name")
	if o := r.lists[path][name]; o != nil {
		return o, nil
	}
	if o := one[object](ctx, r.api, idOf(want), path+join(name)).Value; o != nil { // somebody removed its label
		return *o, nil
	}
	return nil, r.api.err()
}

// writeDifferences prints differences by object.
func writeDifferences(w io.Writer, found []difference) error {
	p := &view.Printer{W: w, Colours: colours(w)}
	object := ""
	for _, d := range found {
		switch {
		case d.field == "":
			p.Printf("%s: %s\n", d.object, d.text)
		case d.object != object:
			p.Printf("%s\n", d.object)
			fallthrough
		default:
			p.Printf("  %s: %s\n", d.field, d.text)
		}
		object = d.object
	}
	return p.Err
}
