package planner

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/internal/yamlalias"
)

// MaxSize is the maximum size of a scenario's text.
const MaxSize = 256 << 10

// Parse reads a scenario in YAML or JSON. The error is a Problems that names every field that is unknown or has a value
// of the wrong kind. It does not check values: Simulate and Check do.
func Parse(text []byte) (Scenario, error) {
	if len(text) > MaxSize {
		return Scenario{}, Problems{{Message: fmt.Sprintf("the scenario has %d bytes: expected at most %d", len(text), MaxSize)}}
	}
	if aliases, err := yamlalias.In(text); err == nil && aliases {
		return Scenario{}, Problems{{Message: "the scenario has YAML aliases (*NAME): write the values out"}}
	}
	data, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return Scenario{}, Problems{{Message: fmt.Sprintf("the scenario is neither YAML nor JSON: %v", err)}}
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var doc any
	if err := d.Decode(&doc); err != nil && err != io.EOF {
		return Scenario{}, Problems{{Message: fmt.Sprintf("the scenario is not JSON: %v", err)}}
	}
	var problems Problems
	problems.conform("", doc, reflect.TypeFor[Scenario]())
	if len(problems) > 0 {
		return Scenario{}, problems
	}
	var s Scenario
	if err := json.Unmarshal(data, &s); err != nil {
		return Scenario{}, Problems{{Message: err.Error()}}
	}
	return s, nil
}

// Check finds the mistakes of a scenario. The error is a Problems.
func (s Scenario) Check() error {
	_, err := s.plans()
	return err
}

// conformMap checks an object whose values have one type.
func (p *Problems) conformMap(path string, v any, values reflect.Type, wrong func(string)) {
	m, ok := v.(map[string]any)
	if !ok {
		wrong("an object")
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		p.conform(path+"."+k, m[k], values)
	}
}

// conform checks that a document has the fields and kinds of values of a Go type.
func (p *Problems) conform(path string, v any, t reflect.Type) {
	wrong := func(expected string) {
		text, _ := json.Marshal(v)
		if len(text) > 40 {
			text = append(text[:40], "..."...)
		}
		p.add(path, "%s: expected %s", text, expected)
	}
	for t.Kind() == reflect.Pointer {
		if v == nil {
			return
		}
		t = t.Elem()
	}
	switch {
	case t == reflect.TypeFor[Duration]():
		var d Duration
		if text, _ := json.Marshal(v); d.UnmarshalJSON(text) != nil {
			wrong(`a duration such as "90s" or "1h30m"`)
		}
		return
	case v == nil && path != "":
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		p.conformStruct(path, v, t, wrong)
	case reflect.Map:
		p.conformMap(path, v, t.Elem(), wrong)
	case reflect.Slice:
		list, ok := v.([]any)
		if !ok {
			wrong("a list")
		}
		for i, e := range list {
			p.conform(fmt.Sprintf("%s[%d]", path, i), e, t.Elem())
		}
	case reflect.String:
		if _, ok := v.(string); !ok {
			wrong("a text")
		}
	case reflect.Bool:
		if _, ok := v.(bool); !ok {
			wrong("true or false")
		}
	default:
		number, ok := v.(json.Number)
		if !ok || json.Unmarshal([]byte(number), reflect.New(t).Interface()) != nil {
			wrong("a number")
		}
	}
}

func (p *Problems) conformStruct(path string, v any, t reflect.Type, wrong func(string)) {
	m, ok := v.(map[string]any)
	if !ok {
		wrong("an object")
		return
	}
	fields := map[string]reflect.Type{}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		fields[name] = t.Field(i).Type
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		at := k
		if path != "" {
			at = path + "." + k
		}
		if of, ok := fields[k]; ok {
			p.conform(at, m[k], of)
		} else {
			p.add(at, "unknown field: expected one of %s", strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
		}
	}
}
