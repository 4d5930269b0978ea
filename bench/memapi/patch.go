package memapi

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// merged returns an object with a merge patch (RFC 7386) applied. It shares what the patch does not change. The result has the UID
// and the resource version of the patch, or none.
func merged(now client.Object, patch []byte) (client.Object, error) {
	next := shallow(now)
	next.SetUID("")
	next.SetResourceVersion("")
	if err := merge(reflect.ValueOf(next).Elem(), patch); err != nil {
		return nil, fmt.Errorf("apply a merge patch: %w", err)
	}
	return next, nil
}

var decoder = reflect.TypeFor[json.Unmarshaler]()

// merge applies a merge patch to a value. It modifies nothing to which the value refers.
func merge(v reflect.Value, patch json.RawMessage) error {
	t := v.Type()
	isPointer := t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct && !t.Implements(decoder)
	isStruct := t.Kind() == reflect.Struct && !reflect.PointerTo(t).Implements(decoder)
	switch {
	case string(patch) == "null":
		v.SetZero()
		return nil
	case isPointer:
		copied := reflect.New(t.Elem())
		if !v.IsNil() {
			copied.Elem().Set(v.Elem())
		}
		v.Set(copied)
		return merge(copied.Elem(), patch)
	case isStruct, t.Kind() == reflect.Map:
		var changes map[string]json.RawMessage
		if err := json.Unmarshal(patch, &changes); err != nil {
			return err
		}
		if isStruct {
			return mergeFields(v, changes)
		}
		return mergeEntries(v, changes)
	}
	decoded := reflect.New(t)
	if err := json.Unmarshal(patch, decoded.Interface()); err != nil {
		return err
	}
	v.Set(decoded.Elem())
	return nil
}

func mergeFields(v reflect.Value, changes map[string]json.RawMessage) error {
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if change, has := changes[name]; has && name != "" {
			if err := merge(v.Field(i), change); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

func mergeEntries(v reflect.Value, changes map[string]json.RawMessage) error {
	t := v.Type()
	merged := reflect.MakeMapWithSize(t, v.Len()+len(changes))
	for i := v.MapRange(); i.Next(); {
		merged.SetMapIndex(i.Key(), i.Value())
	}
	for name, change := range changes {
		key, value := reflect.ValueOf(name).Convert(t.Key()), reflect.New(t.Elem()).Elem()
		if string(change) == "null" {
			merged.SetMapIndex(key, reflect.Value{})
			continue
		}
		if had := merged.MapIndex(key); had.IsValid() {
			value.Set(had)
		}
		if err := merge(value, change); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		merged.SetMapIndex(key, value)
	}
	v.Set(merged)
	return nil
}
