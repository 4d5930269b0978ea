// Package check says in one line what a test wants where the message says no more than that.
package check

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"

	gocmp "github.com/google/go-cmp/cmp"
)

// T is a test, also one of package rapid.
type T interface {
	Helper()
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
}

// OK ends the test at an error.
func OK(t T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Must takes the results of a call, and returns a function that ends the test at its error:
// check.Must(call())(t).
func Must[V any](v V, err error) func(T) V {
	return func(t T) V {
		t.Helper()
		OK(t, err)
		return v
	}
}

// NoError fails the test at an error, and lets it go on.
func NoError(t T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// ErrorSays wants an error with words in its message.
func ErrorSays(t T, err error, words string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), words) {
		t.Errorf("error %v, want one that says %q", err, words)
	}
}

// Equal compares values; an empty slice or map is equal to none. The format and its arguments name what they are.
func Equal[V any](t T, got, want V, format string, args ...any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) && !(empty(got) && empty(want)) {
		t.Errorf("%s: got %v, want %v", fmt.Sprintf(format, args...), got, want)
	}
}

// AtMost wants a value that is not greater than a limit.
func AtMost[V cmp.Ordered](t T, got, most V, format string, args ...any) {
	t.Helper()
	if got > most {
		t.Errorf("%s: got %v, want at most %v", fmt.Sprintf(format, args...), got, most)
	}
}

// empty reports whether a value is a slice or map without elements, nil or not.
func empty(v any) bool {
	of := reflect.ValueOf(v)
	return (of.Kind() == reflect.Slice || of.Kind() == reflect.Map) && of.Len() == 0
}

// Same compares structures, and prints where they differ.
func Same(t T, got, want any, opts ...gocmp.Option) {
	t.Helper()
	if d := gocmp.Diff(want, got, opts...); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
