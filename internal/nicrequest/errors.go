package nicrequest

import (
	"errors"
	"fmt"
	"strings"

	"github.com/berthnet/berth/api/v1alpha1"
)

// The fields of a pod by which errors name what is wrong.
const (
	fieldVPC         = "metadata.annotations[" + v1alpha1.AnnotationVPC + "]"
	fieldNICs        = "metadata.annotations[" + v1alpha1.AnnotationNICs + "]"
	fieldHostNetwork = "spec.hostNetwork"
)

// Error is something wrong with one field.
type Error struct {
	Field  string // such as metadata.annotations[berth.dev/nics][1].ip
	Detail string // what it is, and what was expected
}

// Error reads "metadata.annotations[berth.dev/nics][1].ip: 10.0.0.1 is the gateway ...".
func (e Error) Error() string { return e.Field + ": " + e.Detail }

// Errors are all that is wrong, in the order of the fields.
type Errors []Error

// Err is the errors as one; nil without any.
func (e Errors) Err() error {
	if len(e) == 0 {
		return nil
	}
	texts := make([]string, len(e))
	for i, one := range e {
		texts[i] = one.Error()
	}
	return errors.New(strings.Join(texts, "; "))
}

func (e *Errors) add(field, format string, args ...any) {
	*e = append(*e, Error{field, fmt.Sprintf(format, args...)})
}

// field is one of the NIC at an index of the annotation.
func field(index int, name string) string {
	path := fmt.Sprintf("%s[%d]", fieldNICs, index)
	if name == "" {
		return path
	}
	return path + "." + name
}
