package memapi

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// merged returns an object with a merge patch (RFC 7386) applied. Only the fields at the top that the patch has are encoded. The
// result has the UID and the resource version of the patch, or none.
func merged(now client.Object, patch []byte) (client.Object, error) {
	var fields map[string]any
	if err := json.Unmarshal(patch, &fields); err != nil {
		return nil, fmt.Errorf("decode a merge patch: %w", err)
	}
	next := shallow(now)
	next.SetUID("")
	next.SetResourceVersion("")
	v := reflect.ValueOf(next).Elem()
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		change, has := fields[name]
		if !has || name == "" {
			continue
		}
		if err := mergeField(v.Field(i), change); err != nil {
			return nil, fmt.Errorf("merge field %s of a patch: %w", name, err)
		}
	}
	return next, nil
}

// mergeField sets a field to its value with a patch applied.
func mergeField(field reflect.Value, patch any) error {
	data, err := json.Marshal(field.Interface())
	if err != nil {
		return err
	}
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		return err
	}
	if data, err = json.Marshal(merge(value, patch)); err != nil {
		return err
	}
	field.SetZero()
	return json.Unmarshal(data, field.Addr().Interface())
}

// merge applies a merge patch to a value.
func merge(value, patch any) any {
	changes, is := patch.(map[string]any)
	if !is {
		return patch
	}
	object, is := value.(map[string]any)
	if !is {
		object = map[string]any{}
	}
	for key, change := range changes {
		if change == nil {
			delete(object, key)
		} else {
			object[key] = merge(object[key], change)
		}
	}
	return object
}
