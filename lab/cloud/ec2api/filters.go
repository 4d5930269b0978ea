package ec2api

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/berthnet/berth/lab/cloud/vpc"
)

// values returns the values of a resource that a filter compares. One matching value suffices.
type values[T any] func(*T) []string

// attributes finds the values of a filter for a kind of resource; ok is false for an unknown filter.
type attributes[T any] func(name string) (v values[T], ok bool)

// filterSet describes the filters of a describe action in the API reference. Filters on properties that the
// lab lacks, such as a type's memory, are omitted and therefore refused.
type filterSet struct {
	// Named are the filters whose names follow the elements of the reply: attachment.attach-time is
	// attachment>attachTime.
	named string
	// Within maps the first parts of other filter names to elements.
	within map[string]string
	// At maps all other filters to elements. Fields that are not in replies have the name of an element in
	// their tag "filter".
	at map[string]string
	// Fixed are the values of filters that are the same for all resources.
	fixed map[string]string
	// Absent are filters on properties that no resource of a lab has, such as public addresses and
	// volumes. They match nothing.
	absent string
}

// path returns the path of a filter's element; ok is false if there is none.
func (s filterSet) path(name string) (path []string, ok bool) {
	if at, ok := s.at[name]; ok {
		return strings.Split(at, ">"), true
	}
	if !slices.Contains(strings.Fields(s.named), name) {
		return nil, false
	}
	for first, element := range s.within {
		if rest, ok := strings.CutPrefix(name, first+"."); ok {
			path, name = strings.Split(element, ">"), rest
			break
		}
	}
	for part := range strings.SplitSeq(name, ".") {
		path = append(path, camelCase(part))
	}
	return path, true
}

// camelCase converts a word of a filter name to that of an element: attach-time to attachTime.
func camelCase(word string) string {
	words := strings.Split(word, "-")
	for i, w := range words[1:] {
		words[i+1] = strings.ToUpper(w[:1]) + w[1:]
	}
	return strings.Join(words, "")
}

// filtering returns the attributes of a set of filters. row converts a resource for replies. tags is nil
// for resources without tags.
func filtering[T, X any](s filterSet, row func(*T) X, tags func(*T) vpc.Tags) attributes[T] {
	return func(name string) (values[T], bool) {
		if v, ok := tagFilter(name, tags); ok {
			return v, true
		}
		if value, ok := s.fixed[name]; ok {
			return func(*T) []string { return []string{value} }, true
		}
		if slices.Contains(strings.Fields(s.absent), name) {
			return func(*T) []string { return nil }, true
		}
		path, ok := s.path(name)
		if !ok {
			return nil, false
		}
		read := reader(reflect.TypeFor[X](), path)
		return func(v *T) []string { return read(reflect.ValueOf(row(v))) }, read != nil
	}
}

// tagFilter returns the values of a tag filter: tag:KEY, tag-key or tag-value.
func tagFilter[T any](name string, tags func(*T) vpc.Tags) (values[T], bool) {
	key, ofKey := strings.CutPrefix(name, "tag:")
	switch {
	case tags == nil:
	case ofKey:
		return func(v *T) []string {
			if value, ok := tags(v)[key]; ok {
				return []string{value}
			}
			return nil
		}, true
	case name == "tag-key":
		return func(v *T) []string { return slices.Collect(maps.Keys(tags(v))) }, true
	case name == "tag-value":
		return func(v *T) []string { return slices.Collect(maps.Values(tags(v))) }, true
	}
	return nil, false
}

// reader returns a function that reads the non-empty texts at a path of elements in a value of the type, or
// nil if the type has no such elements.
func reader(t reflect.Type, path []string) func(reflect.Value) []string {
	switch t.Kind() {
	case reflect.Pointer:
		return readAll(reader(t.Elem(), path), func(v reflect.Value) []reflect.Value {
			if v.IsNil() {
				return nil
			}
			return []reflect.Value{v.Elem()}
		})
	case reflect.Slice:
		return readAll(reader(t.Elem(), path), func(v reflect.Value) (items []reflect.Value) {
			for i := range v.Len() {
				items = append(items, v.Index(i))
			}
			return items
		})
	case reflect.Struct:
		for i := range t.NumField() {
			tag := t.Field(i).Tag
			element, _, _ := strings.Cut(tag.Get("xml"), ",")
			if own, ok := tag.Lookup("filter"); ok {
				element = own
			}
			names := strings.Split(element, ">")
			if len(names) <= len(path) && slices.Equal(names, path[:len(names)]) {
				return readAll(reader(t.Field(i).Type, path[len(names):]), func(v reflect.Value) []reflect.Value {
					return []reflect.Value{v.Field(i)}
				})
			}
		}
		return nil
	}
	if len(path) > 0 {
		return nil
	}
	return func(v reflect.Value) []string { return filled([]string{fmt.Sprint(v)}) }
}

// readAll returns a function that applies read to all parts of a value.
func readAll(read func(reflect.Value) []string, parts func(reflect.Value) []reflect.Value) func(reflect.Value) []string {
	if read == nil {
		return nil
	}
	return func(v reflect.Value) (out []string) {
		for _, part := range parts(v) {
			out = append(out, read(part)...)
		}
		return out
	}
}

// filled removes empty values.
func filled(list []string) []string {
	return slices.DeleteFunc(list, func(s string) bool { return s == "" })
}
