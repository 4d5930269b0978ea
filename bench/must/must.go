// Package must ends a measurement at its first error, as testing.T ends a test: OK and Get panic
// with the error, and Catch makes it the result of the function that began the measurement.
package must

import "errors"

// failure is an error on its way to Catch.
type failure struct{ err error }

// OK returns if err is nil.
func OK(err error) {
	if err != nil {
		panic(failure{err}) //nolint:forbidigo // Catch returns it as an error
	}
}

// Get returns v if err is nil.
func Get[T any](v T, err error) T {
	OK(err)
	return v
}

// Catch is deferred by a function with a named error, and sets it to the error that ended the function.
func Catch(err *error) {
	switch p := recover().(type) {
	case nil:
	case failure:
		*err = errors.Join(p.err, *err)
	default:
		panic(p) //nolint:forbidigo // not ours
	}
}
