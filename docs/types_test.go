package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Bounds of a type. One with more state or more methods has more than one subject.
const (
	maxFields  = 15
	maxMethods = 25
)

// large are types beyond the bounds, with the reason.
var large = map[string]string{
	"cmd/vpclab.labFlags":                 flags,
	"lab.Options":                         flags,
	"internal/ctl/kubectl.Egress":         document,
	"internal/ec2/cloud.ENI":              document,
	"internal/ec2/eni/plan.ENI":           "independent inputs of the plan, without state",
	"internal/ec2/cloud/cloudfake.Cloud":  "implements cloud.API and pace.Calls, a method for each EC2 action",
	"internal/ec2/cloud/pace.Set":         untouched,
	"internal/ec2/cloud/pace.pacer":       untouched,
	"internal/ipam.Allocator":             untouched,
	"internal/kernel/datapath.VPC":        "pure: the configuration of a VPC's node, and the rules that follow from it",
	"internal/kernel/egressclient.kernel": "two methods beyond",
	"internal/node/attachment.NIC":        document,
	"internal/node/attachment.Record":     document,
	"internal/node/introspect.Document":   document,
	"internal/source/sourcefake.Source":   "implements source.Source, with a switch for each answer",
	"internal/vpcport/vpcporttest.Bed":    "fixture of a provider's tests for the contract",
	"lab.Status":                          document,
	"lab/cloud/alcorfake.entity":          document,
	"lab/cloud/ec2api.eniXML":             document,
	"lab/cloud/ec2api.instanceXML":        document,
	"lab/cloud/ec2api.subnetXML":          document,
	"lab/cloud/neutronfake.Port":          document,
	"lab/cloud/spec.Spec":                 document,
	"lab/cloud/vpc.ENI":                   document,
}

// Reasons that apply to several types.
const (
	document  = "one field for each field of a document or of an API's object"
	flags     = "one field for each flag or option of a program"
	untouched = "proven as it is, and not to be rewritten for its size"
)

// Checks the limits in docs/contribute/contributing.md for the size of types.
func TestTypesAreSmall(t *testing.T) {
	fields, methods := map[string]int{}, map[string]int{}
	goFiles(t, func(path string) error {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil || ast.IsGenerated(file) {
			return err
		}
		dir := strings.TrimPrefix(filepath.Dir(path), "../") + "."
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if s, ok := s.(*ast.TypeSpec); ok {
						if st, ok := s.Type.(*ast.StructType); ok {
							fields[dir+s.Name.Name] = st.Fields.NumFields()
						}
					}
				}
			case *ast.FuncDecl:
				if d.Recv != nil {
					methods[dir+receiver(d.Recv.List[0].Type)]++
				}
			}
		}
		return nil
	}, "../internal", "../cmd", "../lab", "../bench", "../test", "../deploy")
	if len(fields) < 1000 || len(methods) < 500 {
		t.Fatalf("only %d types and %d with methods were found", len(fields), len(methods))
	}
	names := slices.Sorted(maps.Keys(fields))
	for _, name := range slices.Sorted(maps.Keys(methods)) {
		if _, ok := fields[name]; !ok {
			names = append(names, name)
		}
	}
	for _, name := range names {
		beyond := fields[name] > maxFields || methods[name] > maxMethods
		if reason := large[name]; beyond && reason == "" {
			t.Errorf("%s has %d fields and %d methods, expected at most %d and %d: split it by subject, or give the reason in this test", name, fields[name], methods[name], maxFields, maxMethods)
		} else if !beyond && reason != "" {
			t.Errorf("%s has %d fields and %d methods and needs no exception", name, fields[name], methods[name])
		}
	}
	for name := range large {
		if !slices.Contains(names, name) {
			t.Errorf("the exception %s is not a type", name)
		}
	}
}

// receiver returns the type name in the receiver of a method.
func receiver(e ast.Expr) string {
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}
