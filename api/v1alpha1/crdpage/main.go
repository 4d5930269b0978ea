// Command crdpage writes the reference page of a kind from its CustomResourceDefinition: every
// field with its type, default, validation and writer.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := run(os.Args, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "crdpage:", err)
		os.Exit(1)
	}
}

func run(args []string, w io.Writer) error {
	if len(args) != 3 {
		return errors.New("usage: crdpage CRD-FILE POLICY-FILE: the file of one CustomResourceDefinition, and the path in the repository of the policies that restrict who writes it")
	}
	data, err := os.ReadFile(args[1]) //nolint:gosec // the path comes from go:generate
	if err != nil {
		return fmt.Errorf("read the definition: %w", err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(data, crd); err != nil {
		return fmt.Errorf("%s: %w", args[1], err)
	}
	text, err := page(crd, args[2])
	if err != nil {
		return fmt.Errorf("%s: %w", args[1], err)
	}
	_, err = io.WriteString(w, text)
	return err
}

// schema is the definition of one field.
type schema = apiextensionsv1.JSONSchemaProps

// page returns the page of a kind with one version. The file with policies is named in the page as
// the one that enforces who may write which fields.
func page(crd *apiextensionsv1.CustomResourceDefinition, policies string) (string, error) {
	if len(crd.Spec.Versions) != 1 {
		return "", fmt.Errorf("it has %d versions, expected one", len(crd.Spec.Versions))
	}
	v, names := crd.Spec.Versions[0], crd.Spec.Names
	root := v.Schema.OpenAPIV3Schema
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n<!-- Generated from deploy/chart/files/crds by \"make generate\". -->\n\n", names.Kind)
	short := ""
	if len(names.ShortNames) > 0 {
		short = ", short name `" + strings.Join(names.ShortNames, "`, `") + "`"
	}
	fmt.Fprintf(&b, "apiVersion `%s/%s`, %s%s.\n\n%s\n", crd.Spec.Group, v.Name,
		map[bool]string{true: "one for the cluster", false: "namespaced"}[crd.Spec.Scope == apiextensionsv1.ClusterScoped],
		short, prose(root.Description))
	b.WriteString("\nThe column `writer` names who sets a field: berthd of the node, berth-operator, or a person. Each\n" +
		"program writes only its own fields; " + policies + " enforces this.\n")
	for _, s := range sections(root) {
		if err := s.write(&b); err != nil {
			return "", err
		}
	}
	columns(&b, names.Plural+"."+crd.Spec.Group, v.AdditionalPrinterColumns)
	if selectors := v.SelectableFields; len(selectors) > 0 {
		var paths []string
		for _, f := range selectors {
			paths = append(paths, strings.TrimPrefix(f.JSONPath, "."))
		}
		fmt.Fprintf(&b, "\nFor `--field-selector`: `%s`.\n", strings.Join(paths, "`, `"))
	}
	return b.String(), nil
}

// sections returns the sections of a kind: its own fields and rules, spec and status.
func sections(root *schema) (list []section) {
	own := *root
	own.Description = ""
	own.Properties = maps.Clone(root.Properties)
	for _, name := range []string{"apiVersion", "kind", "metadata", "spec", "status"} {
		delete(own.Properties, name)
	}
	if len(own.Properties)+len(own.XValidations) > 0 {
		list = append(list, section{"", &own, writer(root.Description)})
	}
	for _, part := range []string{"spec", "status"} {
		if top, ok := root.Properties[part]; ok {
			list = append(list, section{part, &top, writer(top.Description)})
		}
	}
	return list
}

// section is the table of one object's fields.
type section struct {
	path   string
	schema *schema
	writer string // of all fields; empty if the fields have different writers
}

// write writes a section and the sections of the objects in it.
func (s section) write(b *strings.Builder) error {
	if s.path != "" {
		fmt.Fprintf(b, "\n## %s\n\n%s\n", s.path, prose(s.schema.Description))
	}
	if len(s.schema.Properties) > 0 {
		b.WriteString("\n| field | type | default | meaning | validation | writer |\n|---|---|---|---|---|---|\n")
	}
	var inner []section
	blamed, together := rules(s.schema)
	for _, name := range fields(s.schema) {
		f := s.schema.Properties[name]
		f.XValidations = slices.Concat(f.XValidations, blamed[name])
		who := cmp.Or(writer(f.Description), s.writer)
		at := section{strings.TrimPrefix(s.path+"."+name, "."), &f, who}
		if f.Type == "object" && len(f.Properties) > 0 {
			inner = append(inner, at)
			continue
		}
		if who == "" {
			return fmt.Errorf("the comment of %s does not say who writes it", at.path)
		}
		row(b, name, &f, slices.Contains(s.schema.Required, name), who)
		if each, mark := element(&f); each != nil {
			for _, sub := range fields(each) {
				g := each.Properties[sub]
				row(b, name+mark+"."+sub, &g, slices.Contains(each.Required, sub), who)
			}
			together = slices.Concat(together, each.XValidations)
		}
	}
	for _, r := range together {
		fmt.Fprintf(b, "\nValidation rule: %s.\n", strings.TrimSuffix(r.Message, "."))
	}
	for _, i := range inner {
		if err := i.write(b); err != nil {
			return err
		}
	}
	return nil
}

// rules returns the rules of an object: those that name a field, by field, and the others.
func rules(s *schema) (blamed map[string]apiextensionsv1.ValidationRules, together apiextensionsv1.ValidationRules) {
	blamed = map[string]apiextensionsv1.ValidationRules{}
	for _, r := range s.XValidations {
		name := strings.TrimPrefix(r.FieldPath, ".")
		if _, ok := s.Properties[name]; ok {
			blamed[name] = append(blamed[name], r)
		} else {
			together = append(together, r)
		}
	}
	return blamed, together
}

// fields returns the fields of an object in alphabetical order, objects last.
func fields(s *schema) []string {
	nested := func(name string) int {
		if f := s.Properties[name]; f.Type == "object" && len(f.Properties) > 0 {
			return 1
		}
		return 0
	}
	return slices.SortedFunc(maps.Keys(s.Properties), func(x, y string) int {
		return cmp.Or(cmp.Compare(nested(x), nested(y)), cmp.Compare(x, y))
	})
}

// element returns the object that a map or list contains, and the suffix that marks it.
func element(f *schema) (*schema, string) {
	switch {
	case f.AdditionalProperties != nil && f.AdditionalProperties.Schema != nil && len(f.AdditionalProperties.Schema.Properties) > 0:
		return f.AdditionalProperties.Schema, "[key]"
	case f.Items != nil && f.Items.Schema != nil && len(f.Items.Schema.Properties) > 0:
		return f.Items.Schema, "[]"
	}
	return nil, ""
}

func row(b *strings.Builder, name string, f *schema, required bool, who string) {
	def := ""
	if f.Default != nil {
		def = "`" + string(f.Default.Raw) + "`"
	}
	last := name[strings.LastIndex(name, ".")+1:]
	fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s | %s |\n", name, typeOf(f), def, cell(meaning(last, f.Description)), cell(checks(f, required)), who)
}

func typeOf(f *schema) string {
	switch {
	case f.Items != nil && f.Items.Schema != nil:
		return "list of " + typeOf(f.Items.Schema) + "s"
	case f.AdditionalProperties != nil && f.AdditionalProperties.Schema != nil:
		return "map to " + typeOf(f.AdditionalProperties.Schema) + "s"
	case f.Format == "date-time":
		return "time"
	}
	return f.Type
}

// checks describes the validation of a field.
func checks(f *schema, required bool) string {
	var out []string
	if required {
		out = append(out, "required")
	}
	if f.MinLength != nil || f.MinItems != nil {
		out = append(out, "not empty")
	}
	for _, m := range []struct {
		text string
		n    *int64
	}{
		{"at most %d characters", f.MaxLength}, {"at most %d of them", f.MaxItems}, {"at most %d of them", f.MaxProperties},
	} {
		if m.n != nil {
			out = append(out, fmt.Sprintf(m.text, *m.n))
		}
	}
	for _, r := range f.XValidations {
		out = append(out, r.Message)
	}
	return strings.Join(out, "; ")
}

// writer returns the writer of a field according to its comment, or "" if there is none.
func writer(comment string) string {
	text := prose(comment)
	switch {
	case strings.Contains(text, "Written by the operator or a person"):
		return "operator, or a person"
	case strings.Contains(text, "Written by the operator"):
		return "operator"
	case strings.Contains(text, "Written by the daemon"):
		return "berthd"
	case strings.Contains(text, "Written by a person"):
		return "a person"
	case strings.Contains(text, "The daemon sets it"), strings.Contains(text, "The daemon fills it"):
		return "berthd at creation, then a person"
	}
	return ""
}

// meaning returns a Go comment without the leading name. For the fields of Kubernetes' own
// conditions it returns the first sentence only.
func meaning(name, comment string) string {
	text := prose(comment)
	if first, rest, ok := strings.Cut(text, " "); ok && strings.EqualFold(first, name) {
		if first == name { // Kubernetes' style
			text, _, _ = strings.Cut(text, ". ")
			text = strings.TrimSuffix(text, ".") + "."
		}
		if !strings.HasPrefix(rest, "of ") {
			text = strings.TrimPrefix(text, first+" ")
		}
	}
	for _, verb := range []string{"is ", "are "} {
		text = strings.TrimPrefix(text, verb)
	}
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// prose returns a comment on one line.
func prose(comment string) string { return strings.Join(strings.Fields(comment), " ") }

func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

func columns(b *strings.Builder, name string, list []apiextensionsv1.CustomResourceColumnDefinition) {
	fmt.Fprintf(b, "\n## Columns\n\nOf `kubectl get %s`:\n\n| column | from | shown |\n|---|---|---|\n", name)
	for _, c := range list {
		shown := "always"
		if c.Priority > 0 {
			shown = "with `-o wide`"
		}
		fmt.Fprintf(b, "| %s | `%s` | %s |\n", c.Name, cell(strings.TrimPrefix(c.JSONPath, ".")), shown)
	}
}
