// Package manifests converts objects of other network plugins to Berth's objects. It reads and prints manifests, and
// asks no API server.
//
//	manifests.go  the table of kinds, and the order of their conversion
//	read.go       manifests as text
//	write.go      Berth's objects as text
//	eniconfig.go, securitygrouppolicy.go, ciliumnode.go  a kind each
//	coil.go, coilegress.go  the kinds and annotations of Coil
package manifests

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"
)

// kind is a row of the table of kinds that the package reads.
type kind struct {
	schema.GroupKind
	// versions are those of the group that are converted.
	versions []string
	// convert adds Berth's objects for all objects of the kind. It is nil if the kind is only read by the conversion
	// of others.
	convert func(of []Object, in *Input, out *Output) error
}

// kinds are all kinds that the package reads. Every other kind is an error.
var kinds = []kind{
	{schema.GroupKind{Group: "crd.k8s.amazonaws.com", Kind: "ENIConfig"}, []string{"v1alpha1"}, eniConfigs},
	{schema.GroupKind{Group: "vpcresources.k8s.aws", Kind: "SecurityGroupPolicy"}, []string{"v1beta1"}, securityGroupPolicies},
	{schema.GroupKind{Group: "cilium.io", Kind: "CiliumNode"}, []string{"v2"}, ciliumNodes},
	{schema.GroupKind{Group: coilGroup, Kind: "AddressPool"}, []string{"v2"}, coilPools},
	{schema.GroupKind{Group: coilGroup, Kind: "AddressBlock"}, []string{"v2"}, coilBlocks},
	{schema.GroupKind{Group: coilGroup, Kind: "BlockRequest"}, []string{"v2"}, nil},
	{schema.GroupKind{Group: coilGroup, Kind: "Egress"}, []string{"v2"}, coilEgresses},
	{schema.GroupKind{Kind: "Namespace"}, []string{"v1"}, coilAnnotations},
	{schema.GroupKind{Kind: "Pod"}, []string{"v1"}, coilAnnotations},
	{schema.GroupKind{Group: "apps", Kind: "Deployment"}, []string{"v1"}, coilAnnotations},
	{schema.GroupKind{Group: "apps", Kind: "StatefulSet"}, []string{"v1"}, coilAnnotations},
	{schema.GroupKind{Group: "apps", Kind: "DaemonSet"}, []string{"v1"}, coilAnnotations},
	{schema.GroupKind{Group: "batch", Kind: "Job"}, []string{"v1"}, coilAnnotations},
	{schema.GroupKind{Group: "batch", Kind: "CronJob"}, []string{"v1"}, coilAnnotations},
	{schema.GroupKind{Kind: "ConfigMap"}, []string{"v1"}, configMaps},
	{schema.GroupKind{Kind: "Node"}, []string{"v1"}, nil},
}

// Object is one manifest.
type Object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Source string // the file that it is from
	raw    []byte // JSON
}

// String names the object in errors and comments.
func (o *Object) String() string {
	name := o.Name
	if o.Namespace != "" {
		name = o.Namespace + "/" + name
	}
	return o.Kind + " " + name
}

// Decode decodes the object into v, whose type must have a field for every field of the kind that the conversion knows.
// The error names the object, its file and all fields that v does not have.
func (o *Object) Decode(v any) error {
	unknown, err := kjson.UnmarshalStrict(o.raw, v)
	if err = errors.Join(append(unknown, err)...); err != nil {
		return fmt.Errorf("%s (%s): %s", o, o.Source, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}

// Lenient is Decode for kinds of Kubernetes, of which the conversion reads a few fields.
func (o *Object) Lenient(v any) error {
	if err := json.Unmarshal(o.raw, v); err != nil {
		return fmt.Errorf("%s (%s): %w", o, o.Source, err)
	}
	return nil
}

// Input is what was read, with the options that the objects themselves do not say.
type Input struct {
	Objects []Object
	Options
}

// Options are settings of the former system that are in no object.
type Options struct {
	ENIConfigLabel      string // ENI_CONFIG_LABEL_DEF of the Amazon VPC CNI
	ENIConfigAnnotation string // ENI_CONFIG_ANNOTATION_DEF
	Template            string // name of one NodeNetworkTemplate in place of a NodeNetwork for each CiliumNode; may be empty
}

// Of returns the objects of a kind.
func (in *Input) Of(group, kind string) []Object {
	return slices.DeleteFunc(slices.Clone(in.Objects), func(o Object) bool {
		return o.GroupVersionKind().GroupKind() != schema.GroupKind{Group: group, Kind: kind}
	})
}

// Output is what Berth has in place of the objects that were read.
type Output struct {
	Objects []any // in the order in which they are printed
	// Comments say what to do before the objects are applied.
	Comments []string
	// Lost are the settings that Berth has nothing for, each with the object and the field.
	Lost []string
}

// Comment adds a comment.
func (out *Output) Comment(format string, args ...any) {
	out.Comments = append(out.Comments, fmt.Sprintf(format, args...))
}

// Lose adds a setting that Berth has nothing for.
func (out *Output) Lose(o *Object, field, why string) {
	out.Lost = append(out.Lost, fmt.Sprintf("%s: %s: %s", o, field, why))
}

// Convert returns Berth's objects. The error names every object that cannot be converted, and the fields; then nothing is
// returned. Objects of the same kind and name must be the same text twice at most.
func Convert(in Input) (out Output, err error) {
	var errs []error
	seen := map[string]string{}
	for i := range in.Objects {
		o := &in.Objects[i]
		row := rowOf(o)
		switch source, twice := seen[o.String()], seen[o.String()] != ""; {
		case row == nil:
			errs = append(errs, fmt.Errorf("%s (%s): kind %s of apiVersion %q is unknown: expected %s", o, o.Source, o.Kind, o.APIVersion, known()))
		case o.Name == "":
			errs = append(errs, fmt.Errorf("%s (%s): metadata.name is empty", o.Kind, o.Source))
		case twice:
			errs = append(errs, fmt.Errorf("%s is in %s and in %s", o, source, o.Source))
		}
		seen[o.String()] = o.Source
	}
	if len(errs) > 0 {
		return Output{}, errors.Join(errs...)
	}
	for _, row := range kinds {
		if of := in.Of(row.Group, row.Kind); row.convert != nil && len(of) > 0 {
			errs = append(errs, row.convert(of, &in, &out))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Output{}, err
	}
	return out, nil
}

func rowOf(o *Object) *kind {
	gv, err := schema.ParseGroupVersion(o.APIVersion)
	i := slices.IndexFunc(kinds, func(k kind) bool {
		return err == nil && k.Group == gv.Group && k.Kind == o.Kind && slices.Contains(k.versions, gv.Version)
	})
	if i < 0 {
		return nil
	}
	return &kinds[i]
}

// known lists the kinds of the table for errors.
func known() string {
	var all []string
	for _, k := range kinds {
		for _, v := range k.versions {
			all = append(all, fmt.Sprintf("%s of %s", k.Kind, schema.GroupVersion{Group: k.Group, Version: v}))
		}
	}
	return strings.Join(all, ", ")
}
