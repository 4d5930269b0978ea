package ec2api

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/berthnet/berth/lab/cloud/vpc"
)

// values are what a filter looks at in a resource; it matches when any of them
// does, so a resource without what the filter is about has none.
type values[T any] func(*T) []string

// attributes finds what a filter name means for a kind of resource; ok is
// false for a name that the kind does not have.
type attributes[T any] func(name string) (v values[T], ok bool)

// filterSet has the filters of a describe action, as the API reference lists
// them. Those about what the lab does not know of its resources, such as a
// type's memory, are left out and so refused.
type filterSet struct {
	// Named are those that are called like the XML elements of the reply that they
	// look at: attachment.attach-time looks at attachment>attachTime.
	named string
	// Within are elements that are called otherwise, by the first parts of filters.
	within map[string]string
	// At are the elements that other filters look at. A field that no reply shows
	// has an element's name in its tag "filter".
	at map[string]string
	// Fixed is what filters find in every resource of a lab.
	fixed map[string]string
	// Absent are those about what no lab has, such as public addresses and volumes:
	// they match nothing.
	absent string
}

// path is where a filter looks; ok is false for one that looks at no element.
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

// camelCase is a filter's word as an element's: attachTime for attach-time.
func camelCase(word string) string {
	words := strings.Split(word, "-")
	for i, w := range words[1:] {
		words[i+1] = strings.ToUpper(w[:1]) + w[1:]
	}
	return strings.Join(words, "")
}

// filtering finds what the filters of a set mean, for resources that a reply
// shows as row. Tags is nil for those that have none.
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

// tagFilter is one of the filters about tags: tag:KEY, tag-key and tag-value.
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

// reader reads the texts at a path of elements out of values of a type; empty ones
// are none. It is nil when the type has no such elements.
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

// readAll reads by read what parts finds in a value.
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

// filled are the values that are not empty.
func filled(list []string) []string {
	return slices.DeleteFunc(list, func(s string) bool { return s == "" })
}
