package ec2api

import (
	"encoding/base64"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/berthnet/berth/lab/cloud/vpc"
)

// Limits of a request's filters: the total number of values (EC2 API, "Filter": 200), and the length of a
// value in characters, which leaves room for a tag value with all characters escaped.
const (
	maxFilterValues = 200
	maxFilterLength = 512
)

type filter struct {
	name   string
	values []string
}

// filters reads Filter.N.
func (r *request) filters() []filter {
	var out []filter
	n := 0
	for _, p := range r.each("Filter") {
		f := filter{r.need(p + "Name"), r.list(p + "Value")}
		if len(f.values) == 0 {
			r.fail(vpc.Errorf("InvalidParameterValue", "The filter '%s' has no values", f.name))
		}
		if slices.ContainsFunc(append(f.values, f.name), func(s string) bool { return utf8.RuneCountInString(s) > maxFilterLength }) {
			r.fail(vpc.Errorf("InvalidParameterValue", "A filter's name or value exceeds the maximum length of %d characters", maxFilterLength))
		}
		if n += max(1, len(f.values)); n > maxFilterValues {
			r.fail(vpc.Errorf("FilterLimitExceeded", "The maximum number of filter values specified on a single call is %d", maxFilterValues))
			return out
		}
		out = append(out, f)
	}
	return out
}

// apply selects the resources that match every filter by one of its values.
func apply[T any](list []*T, fs []filter, attrs attributes[T]) ([]*T, error) {
	found := make([]values[T], len(fs))
	for i, f := range fs {
		v, ok := attrs(f.name)
		if !ok {
			return nil, vpc.Errorf("InvalidParameterValue", "The filter '%s' is invalid", f.name)
		}
		found[i] = v
	}
	return slices.DeleteFunc(list, func(v *T) bool {
		for i, f := range fs {
			if !slices.ContainsFunc(found[i](v), f.matches) {
				return true
			}
		}
		return false
	}), nil
}

func (f *filter) matches(value string) bool {
	return slices.ContainsFunc(f.values, func(pattern string) bool { return wildcard(pattern, value) })
}

// wildcard matches s with a pattern in which * stands for any text and ? for one character; \ escapes the
// next character (EC2 User Guide, "Filtering resources").
func wildcard(pattern, s string) bool {
	star, retry := "", "" // the pattern after the last *, and the text that it is tried on
	starred := false
	for {
		if pattern != "" && pattern[0] == '*' {
			pattern, starred = pattern[1:], true
			star, retry = pattern, s
			continue
		}
		if s == "" && pattern == "" {
			return true
		}
		if rest, ok := one(pattern, s); ok {
			pattern, s = rest, s[1:]
			continue
		}
		if !starred || retry == "" {
			return false
		}
		retry = retry[1:]
		pattern, s = star, retry
	}
}

// one matches the first character of s, and returns the rest of the pattern.
func one(pattern, s string) (rest string, ok bool) {
	if pattern == "" || s == "" {
		return "", false
	}
	if pattern[0] == '?' {
		return pattern[1:], true
	}
	if pattern[0] == '\\' && len(pattern) > 1 {
		pattern = pattern[1:]
	}
	return pattern[1:], pattern[0] == s[0]
}

// source lists the resources of a describe call, or finds one by its ID (nil if none). kind is the prefix
// of their IDs.
type source[T any] struct {
	kind string
	id   func(*T) string
	all  func() []*T
	one  func(id string) *T
}

// listed is a source backed by a short list.
func listed[T any](kind string, all []*T, id func(*T) string) source[T] {
	return source[T]{kind, id, func() []*T { return all }, func(want string) *T {
		if i := slices.IndexFunc(all, func(v *T) bool { return id(v) == want }); i >= 0 {
			return all[i]
		}
		return nil
	}}
}

// pick returns the resources with the given IDs, ordered by ID, or all resources if no IDs are given. An
// unknown ID is an error.
func (s source[T]) pick(ids []string) ([]*T, error) {
	if len(ids) == 0 {
		return s.all(), nil
	}
	var out []*T
	var missing []string
	for _, want := range ids {
		v := s.one(want)
		if v == nil {
			missing = append(missing, want)
		} else if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	if len(missing) > 0 {
		return nil, vpc.NotFound(s.kind, missing...)
	}
	slices.SortFunc(out, func(a, b *T) int { return strings.Compare(s.id(a), s.id(b)) })
	return out, nil
}

// describe serves most describe calls: it reads the common parameters and lists. ids is the name of the
// parameter with IDs, most the maximum page size.
func describe[T any](r *request, ids string, most int, s source[T], attrs attributes[T]) ([]*T, string, error) {
	wanted, fs, p := r.list(ids), r.filters(), r.page(ids, most)
	if err := r.ready(); err != nil {
		return nil, "", err
	}
	return listing(r, s, wanted, fs, p, attrs)
}

// listing picks resources by ID, filters them, and returns one page.
func listing[T any](r *request, s source[T], ids []string, fs []filter, p page, attrs attributes[T]) ([]*T, string, error) {
	list, err := s.pick(ids)
	if err == nil {
		list, err = apply(list, fs, attrs)
	}
	if err != nil {
		return nil, "", err
	}
	list, next := cut(r, p, list, s.id)
	return list, next, nil
}

// page is the requested page.
type page struct {
	size  int // 0: everything
	after string
}

// page reads MaxResults, which may not exceed most, and NextToken. ids is the name of the parameter with
// IDs, which excludes MaxResults.
func (r *request) page(ids string, most int) page {
	n, given := r.number("MaxResults")
	token := r.text("NextToken")
	if given && (n < 5 || n > most) {
		r.fail(vpc.Errorf("InvalidParameterValue", "Value ( %d ) for parameter maxResults is invalid. Expecting a value between 5 and %d.", n, most))
	}
	if given && ids != "" && r.has(ids) {
		r.fail(vpc.Errorf("InvalidParameterCombination", "The parameter %s cannot be used with the parameter maxResults", ids))
	}
	p := page{size: n}
	if token != "" {
		b, err := base64.RawURLEncoding.DecodeString(token)
		action, after, ok := strings.Cut(string(b), "\n")
		if err != nil || !ok || action != r.call.Action {
			r.fail(vpc.Errorf("InvalidNextToken", "The token '%s' is invalid", token))
		}
		p.after = after
	}
	return p
}

// cut returns one page of a list that is ordered by key, and the token of the next page, or "" at the end.
// The token is the last key, so that changes between pages do not shift the other resources.
func cut[T any](r *request, p page, list []*T, key func(*T) string) ([]*T, string) {
	if p.after != "" {
		i := 0
		for i < len(list) && key(list[i]) <= p.after {
			i++
		}
		list = list[i:]
	}
	if p.size == 0 || len(list) <= p.size {
		return list, ""
	}
	list = list[:p.size]
	last := r.call.Action + "\n" + key(list[p.size-1])
	return list, base64.RawURLEncoding.EncodeToString([]byte(last))
}
