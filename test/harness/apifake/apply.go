package apifake

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// merged is an object with a merge patch (RFC 7386).
func merged(o *unstructured.Unstructured, kind string, patch []byte) (*unstructured.Unstructured, error) {
	if kind != string(types.MergePatchType) {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("a patch of type %s", kind))
	}
	var p map[string]any
	if err := json.Unmarshal(patch, &p); err != nil {
		return nil, err
	}
	out := o.DeepCopy()
	out.SetResourceVersion("") // what the patch says counts
	mergeInto(out.Object, p)
	return normal(out)
}

func mergeInto(o, patch map[string]any) {
	for key, value := range patch {
		switch v := value.(type) {
		case nil:
			delete(o, key)
		case map[string]any:
			at, ok := o[key].(map[string]any)
			if !ok {
				at = map[string]any{}
			}
			mergeInto(at, v)
			o[key] = at
		default:
			o[key] = value
		}
	}
}

// normal converts numbers to those of objects that were read from JSON.
func normal(o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	data, err := json.Marshal(o.Object)
	if err != nil {
		return nil, err
	}
	out := &unstructured.Unstructured{}
	return out, json.Unmarshal(data, &out.Object)
}

// apply is a forced server-side apply: fields that the manager applied before and does not now are
// removed. Lists other than conditions are applied as a whole. s.mu is held.
func (s *Server) apply(q request, o *object, manager string, body []byte) (*unstructured.Unstructured, error) {
	config := &unstructured.Unstructured{}
	if err := json.Unmarshal(body, &config.Object); err != nil {
		return nil, err
	}
	if o == nil {
		if config.GetUID() != "" {
			return nil, apierrors.NewConflict(s.kinds[q.resource].groupResource(), q.name.Name, fmt.Errorf("there is no object with UID %s", config.GetUID()))
		}
		if q.subresource != "" {
			return nil, apierrors.NewNotFound(s.kinds[q.resource].groupResource(), q.name.Name)
		}
		made := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(config.Object)}
		made.SetName(q.name.Name)
		made.SetNamespace(q.name.Namespace)
		if _, err := s.create(q.resource, made); err != nil {
			return nil, err
		}
		o = s.objects[q.resource][q.name]
		config.SetResourceVersion("") // the version that one that is there must have
	}
	want := o.DeepCopy()
	want.SetResourceVersion(config.GetResourceVersion())
	want.SetUID(config.GetUID())
	fields := maps.Clone(config.Object)
	owner := manager + "/" + q.subresource
	unapply(want.Object, o.applied[owner], fields)
	applyInto(want.Object, fields)
	out, err := s.update(q.resource, o, want, q.subresource)
	if err == nil {
		o.applied[owner] = fields
	}
	return out, err
}

// unapply removes fields that were applied before and are not now.
func unapply(o, former, now map[string]any) {
	for key, value := range former {
		if key == "metadata" || key == "apiVersion" || key == "kind" {
			continue
		}
		kept, still := now[key]
		was, isMap := value.(map[string]any)
		switch {
		case key == "conditions":
			list, _ := kept.([]any)
			setOrRemove(o, key, withoutConditions(o[key], value, list))
		case isMap:
			at, _ := o[key].(map[string]any)
			next, _ := kept.(map[string]any)
			if at != nil {
				unapply(at, was, next)
				if len(at) == 0 && !still {
					delete(o, key)
				}
			}
		case !still:
			delete(o, key)
		}
	}
}

func applyInto(o, config map[string]any) {
	for key, value := range config {
		switch v := value.(type) {
		case map[string]any:
			if key == "metadata" {
				v = maps.Clone(v)
				for _, own := range []string{"resourceVersion", "uid", "managedFields", "creationTimestamp"} {
					delete(v, own)
				}
			}
			at, ok := o[key].(map[string]any)
			if !ok {
				at = map[string]any{}
			}
			applyInto(at, v)
			o[key] = at
		case []any:
			if key == "conditions" {
				o[key] = withConditions(o[key], v)
				continue
			}
			o[key] = runtime.DeepCopyJSONValue(v)
		default:
			o[key] = value
		}
	}
}

// hasType returns whether a condition has the type of another.
func hasType(other any) func(condition any) bool {
	of := func(c any) any { m, _ := c.(map[string]any); return m["type"] }
	return func(c any) bool { return of(c) == of(other) }
}

// withConditions merges conditions into a list, by type.
func withConditions(have any, with []any) []any {
	list, _ := have.([]any)
	out := slices.Clone(list)
	for _, c := range with {
		if i := slices.IndexFunc(out, hasType(c)); i >= 0 {
			out[i] = c
		} else {
			out = append(out, c)
		}
	}
	return out
}

// withoutConditions removes the conditions of former that now lacks from a list.
func withoutConditions(have, former any, now []any) any {
	list, _ := have.([]any)
	was, _ := former.([]any)
	out := slices.DeleteFunc(slices.Clone(list), func(c any) bool {
		return slices.ContainsFunc(was, hasType(c)) && !slices.ContainsFunc(now, hasType(c))
	})
	if len(out) == 0 {
		return nil
	}
	return out
}
