// Package must stops a measurement at its first error, as testing.T stops a test: OK and Get panic with
// the error, and Catch returns it from the function that started the measurement.
package must

import "errors"

// failure is the value that OK panics with and Catch recovers.
type failure struct{ err error }

// OK panics unless err is nil.
func OK(err error) {
	if err != nil {
		panic(failure{err}) //nolint:forbidigo // Catch returns it as an error
	}
}

// Get returns v, and panics unless err is nil.
func Get[T any](v T, err error) T {
	OK(err)
	return v
}

// Catch is deferred by a function with a named error result. It recovers the panic of OK and Get, and sets
// the result to its error.
func Catch(err *error) {
	switch p := recover().(type) {
	case nil:
	case failure:
		*err = errors.Join(p.err, *err)
	default:
		panic(p) //nolint:forbidigo // not ours
	}
}
