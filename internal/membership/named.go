// Package membership determines the Egresses of a pod: those that its annotations name,
// and those that select it. The operator assigns gateways accordingly, and the daemon uses
// the same rules to know whether to wait for the operator's decision. It does no I/O.
//
//	named.go     the annotations
//	selectors.go spec.clients of all Egresses, which of them are in force, and the consent of namespaces
package membership

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
)

// MaxEgresses is how many Egresses a pod can be a client of.
const MaxEgresses = 32

// Ref names an Egress.
type Ref struct{ Namespace, Name string }

// String reads "namespace/name".
func (r Ref) String() string { return r.Namespace + "/" + r.Name }

// Compare orders by namespace, then name.
func (r Ref) Compare(o Ref) int {
	return cmp.Or(strings.Compare(r.Namespace, o.Namespace), strings.Compare(r.Name, o.Name))
}

// Error is an invalid annotation. None of its Egresses is used.
type Error struct {
	// Namespace is the part of the key that should name one.
	Namespace string
	// Detail names the invalid part of the annotation and what was expected.
	Detail string
}

// Error returns a text such as "metadata.annotations[egress.berth.dev/internet]: names nat twice".
func (e Error) Error() string { return Field(e.Namespace) + ": " + e.Detail }

// Errors are the errors of all annotations, ordered by key.
type Errors []Error

// Err joins the errors; nil: there are none.
func (e Errors) Err() error {
	all := make([]error, len(e))
	for i, one := range e {
		all[i] = one
	}
	if err := errors.Join(all...); err != nil {
		return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}

func (e *Errors) add(namespace, format string, args ...any) {
	*e = append(*e, Error{namespace, fmt.Sprintf(format, args...)})
}

// Field is the path of the annotation that names Egresses of a namespace.
func Field(namespace string) string {
	return "metadata.annotations[" + v1alpha1.AnnotationEgressPrefix + namespace + "]"
}

var (
	// namespaceName matches RFC 1123 labels, as names of namespaces are; egressName matches the names
	// that the CRD of Egress accepts.
	namespaceName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	egressName    = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,50}[a-z0-9])?$`)
)

// Annotated reports whether annotations of a pod name Egresses, validly or not.
func Annotated(annotations map[string]string) bool {
	for key := range annotations {
		if IsKey(key) {
			return true
		}
	}
	return false
}

// IsKey reports whether an annotation with a key names Egresses.
func IsKey(key string) bool { return strings.HasPrefix(key, v1alpha1.AnnotationEgressPrefix) }

// Named returns the Egresses that a pod's annotations name (egress.berth.dev/NAMESPACE:
// NAME[,NAME]), ordered by namespace and name. Spaces around names are ignored. An invalid
// annotation names none. Annotations beyond MaxEgresses in total name none.
func Named(annotations map[string]string) ([]Ref, Errors) {
	var named []Ref
	var errs Errors
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		namespace, is := strings.CutPrefix(key, v1alpha1.AnnotationEgressPrefix)
		if !is {
			continue
		}
		refs, detail := parse(namespace, annotations[key])
		if detail == "" && len(named)+len(refs) > MaxEgresses {
			detail = fmt.Sprintf("names %d Egresses, with other annotations more than %d, expected at most so many for a pod", len(refs), MaxEgresses)
		}
		if detail != "" {
			errs.add(namespace, "%s", detail)
			continue
		}
		named = append(named, refs...)
	}
	slices.SortFunc(named, Ref.Compare)
	return named, errs
}

// NamedForCoil returns the Egresses that a pod's annotations of Coil name and its own do not (egress.coil.cybozu.com/NAMESPACE:
// NAME[,NAME]). They count if the Egress has clients of Coil, which the caller knows. Invalid annotations name none.
func NamedForCoil(annotations map[string]string) []Ref {
	var of map[string]string
	for key, value := range annotations {
		if namespace, is := strings.CutPrefix(key, v1alpha1.AnnotationCoilEgressPrefix); is {
			if of == nil {
				of = map[string]string{}
			}
			of[v1alpha1.AnnotationEgressPrefix+namespace] = value
		}
	}
	if of == nil {
		return nil
	}
	named, _ := Named(of)
	own, _ := Named(annotations)
	return slices.DeleteFunc(named, func(r Ref) bool { return slices.Contains(own, r) })
}

// HasCoilClients reports whether annotations of an Egress say that it has clients of Coil.
func HasCoilClients(annotations map[string]string) bool {
	return annotations[v1alpha1.AnnotationCoilClients] == "true"
}

// IsCoils reports whether Coil's Egress with this UID, of the same name, controls an object.
func IsCoils(o metav1.Object, uid types.UID) bool {
	owner := metav1.GetControllerOf(o)
	return owner != nil && uid != "" && owner.UID == uid && owner.Kind == "Egress" && owner.Name == o.GetName() && strings.HasPrefix(owner.APIVersion, "coil.cybozu.com/")
}

// parse reads one annotation. wrong is why it is invalid; empty: it is valid.
func parse(namespace, value string) (refs []Ref, wrong string) {
	if !namespaceName.MatchString(namespace) {
		return nil, fmt.Sprintf("names Egresses of %q, expected the name of a namespace: at most 63 lower-case letters, digits and hyphens", namespace)
	}
	if n := strings.Count(value, ",") + 1; n > MaxEgresses {
		return nil, fmt.Sprintf("names %d Egresses, expected at most %d for a pod", n, MaxEgresses)
	}
	for i, name := range strings.Split(value, ",") {
		ref := Ref{namespace, strings.TrimSpace(name)}
		switch {
		case ref.Name == "":
			return nil, fmt.Sprintf("is %.80q, whose name %d is empty, expected names of Egresses separated by commas", value, i+1)
		case !egressName.MatchString(ref.Name):
			return nil, fmt.Sprintf("names %.80q, expected the name of an Egress: a letter, and at most 52 lower-case letters, digits and hyphens", ref.Name)
		case slices.Contains(refs, ref):
			return nil, fmt.Sprintf("names %s twice, expected each Egress once", ref.Name)
		}
		refs = append(refs, ref)
	}
	return refs, ""
}
