package spec

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Load reads and completes the spec in a YAML file.
func Load(path string) (Spec, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Spec{}, fmt.Errorf("read lab spec: %w", err)
	}
	s, err := Parse(b)
	if err != nil {
		return Spec{}, fmt.Errorf("lab spec %s: %w", path, err)
	}
	return s, nil
}

// Parse reads a YAML spec, rejects unknown fields, and returns the spec with its defaults. Errors name the
// field, such as vpcs[0].subnets[1].cidr.
func Parse(b []byte) (Spec, error) {
	j, err := yaml.YAMLToJSONStrict(b)
	if err != nil {
		return Spec{}, err
	}
	d := json.NewDecoder(bytes.NewReader(j))
	d.UseNumber()
	var tree any
	if err := d.Decode(&tree); err != nil {
		return Spec{}, err
	}
	var s Spec
	if err := decode("", tree, reflect.ValueOf(&s).Elem()); err != nil {
		return Spec{}, err
	}
	return s.Complete()
}

var textType = reflect.TypeFor[encoding.TextUnmarshaler]()

// decode decodes a JSON tree into v. Unlike encoding/json, it reports the path of a value that its own
// parser rejects.
func decode(path string, tree any, v reflect.Value) error {
	if tree == nil {
		return nil
	}
	if v.Addr().Type().Implements(textType) {
		s, ok := tree.(string)
		if !ok {
			return fieldError(path, "expected text, got %s", kindOf(tree))
		}
		if err := v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(s)); err != nil {
			return fieldError(path, "%v", err)
		}
		return nil
	}
	switch v.Kind() {
	case reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		v.Set(p)
		return decode(path, tree, p.Elem())
	case reflect.Struct:
		return decodeStruct(path, tree, v)
	case reflect.Slice:
		return decodeSlice(path, tree, v)
	case reflect.Map:
		return decodeMap(path, tree, v)
	default:
		return decodeScalar(path, tree, v)
	}
}

func decodeStruct(path string, tree any, v reflect.Value) error {
	m, ok := tree.(map[string]any)
	if !ok {
		return fieldError(path, "expected a mapping, got %s", kindOf(tree))
	}
	fields := map[string]reflect.Value{}
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		fields[name] = v.Field(i)
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		f, ok := fields[k]
		if !ok {
			return fieldError(join(path, k), "unknown field; supported are %s", strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
		}
		if err := decode(join(path, k), m[k], f); err != nil {
			return err
		}
	}
	return nil
}

func decodeSlice(path string, tree any, v reflect.Value) error {
	l, ok := tree.([]any)
	if !ok {
		return fieldError(path, "expected a list, got %s", kindOf(tree))
	}
	s := reflect.MakeSlice(v.Type(), len(l), len(l))
	for i := range l {
		if err := decode(fmt.Sprintf("%s[%d]", path, i), l[i], s.Index(i)); err != nil {
			return err
		}
	}
	v.Set(s)
	return nil
}

func decodeMap(path string, tree any, v reflect.Value) error {
	m, ok := tree.(map[string]any)
	if !ok {
		return fieldError(path, "expected a mapping, got %s", kindOf(tree))
	}
	out := reflect.MakeMap(v.Type())
	for _, k := range slices.Sorted(maps.Keys(m)) {
		e := reflect.New(v.Type().Elem()).Elem()
		if err := decode(join(path, k), m[k], e); err != nil {
			return err
		}
		out.SetMapIndex(reflect.ValueOf(k), e)
	}
	v.Set(out)
	return nil
}

func decodeScalar(path string, tree any, v reflect.Value) error {
	b, err := json.Marshal(tree)
	if err == nil {
		err = json.Unmarshal(b, v.Addr().Interface())
	}
	if err != nil {
		return fieldError(path, "expected %s, got %s", v.Kind(), b)
	}
	return nil
}

func kindOf(tree any) string {
	switch tree.(type) {
	case string:
		return "text"
	case bool:
		return "a boolean"
	case json.Number:
		return "a number"
	case []any:
		return "a list"
	default:
		return "a mapping"
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func fieldError(path, format string, args ...any) error {
	if path == "" {
		path = "spec"
	}
	return fmt.Errorf("%s: %s", path, fmt.Sprintf(format, args...))
}
