package ec2

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/berthnet/berth/internal/lab/cloud/vpc"
)

// values are what a filter looks at in a resource; it matches when any of them
// does, so a resource without what the filter is about has none.
type values[T any] func(*T) []string

// attributes finds what a filter name means for a kind of resource; ok is
// false for a name that the kind does not have.
type attributes[T any] func(name string) (v values[T], ok bool)

// filterTable has the filters of a describe action by name, as the API
// reference lists them. Those about what no lab has, such as public addresses
// and volumes, are absent: they match nothing. Those about what the lab does not
// know of its resources, such as a type's memory, are left out and so refused.
type filterTable[T any] map[string]values[T]

// find is the table's attributes.
func (t filterTable[T]) find(name string) (values[T], bool) {
	v, ok := t[name]
	return v, ok
}

// tagged is the table's attributes and tag:KEY, tag-key and tag-value.
func (t filterTable[T]) tagged(tags func(*T) vpc.Tags) attributes[T] {
	return func(name string) (values[T], bool) {
		if key, ok := strings.CutPrefix(name, "tag:"); ok {
			return func(v *T) []string {
				if value, ok := tags(v)[key]; ok {
					return []string{value}
				}
				return nil
			}, true
		}
		switch name {
		case "tag-key":
			return func(v *T) []string { return slices.Collect(maps.Keys(tags(v))) }, true
		case "tag-value":
			return func(v *T) []string { return slices.Collect(maps.Values(tags(v))) }, true
		}
		return t.find(name)
	}
}

// alias lets filters be called by other names, which come first in pairs.
func (t filterTable[T]) alias(pairs ...string) filterTable[T] {
	for i := 0; i < len(pairs); i += 2 {
		t[pairs[i]] = t[pairs[i+1]]
	}
	return t
}

// absent adds filters that match nothing.
func (t filterTable[T]) absent(names ...string) filterTable[T] {
	for _, n := range names {
		t[n] = func(*T) []string { return nil }
	}
	return t
}

// text is one value, none when it is empty.
func text[T any](f func(*T) string) values[T] {
	return func(v *T) []string {
		if s := f(v); s != "" {
			return []string{s}
		}
		return nil
	}
}

// same is a value that all resources have.
func same[T any](s string) values[T] { return func(*T) []string { return []string{s} } }

func flag[T any](f func(*T) bool) values[T] {
	return func(v *T) []string { return []string{strconv.FormatBool(f(v))} }
}

func number[T any](f func(*T) int) values[T] {
	return func(v *T) []string { return []string{strconv.Itoa(f(v))} }
}
