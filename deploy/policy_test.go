package deploy

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The operator's IAM policy allows the EC2 actions behind the methods of
// cloud.API that its code calls, and nothing else.
func TestOperatorPolicyListsTheActionsCalled(t *testing.T) {
	actions := actionsByMethod(t)
	called := selectors(t, "../internal/eni", "../internal/operator", "../cmd/berth-operator")
	var want []string
	for _, method := range cloudMethods(t) {
		if len(actions[method]) == 0 {
			t.Errorf("internal/cloud/aws calls no EC2 action in %s", method)
		}
		if called[method] {
			want = append(want, actions[method]...)
		}
	}
	slices.Sort(want)
	if d := cmp.Diff(slices.Compact(want), policyActions(t, "operator-mode/iam-policy.json")); d != "" {
		t.Errorf("iam-policy.json (-called +allowed):\n%s", d)
	}
}

// Nodes in operator mode need no policy: berthd's code for it knows no cloud.
func TestNodesInOperatorModeCallNoEC2(t *testing.T) {
	called := selectors(t, "../internal/source/nodenetwork")
	for _, method := range cloudMethods(t) {
		// Names that are not the cloud's alone.
		if called[method] && !slices.Contains([]string{"ENIs", "Limits", "Subnets", "Instance"}, method) {
			t.Errorf("internal/source/nodenetwork calls %s", method)
		}
	}
	for name, file := range parse(t, "../internal/source/nodenetwork") {
		for _, i := range file.Imports {
			if strings.Contains(i.Path.Value, "/internal/cloud/aws") || strings.Contains(i.Path.Value, "aws-sdk") {
				t.Errorf("%s imports %s", name, i.Path.Value)
			}
		}
	}
}

// cloudMethods are those of cloud.API, also of interfaces that are part of it.
func cloudMethods(t *testing.T) (names []string) {
	t.Helper()
	interfaces := map[string]*ast.InterfaceType{}
	for _, file := range parse(t, "../internal/cloud") {
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok && file.Name.Name == "cloud" {
				if i, ok := spec.Type.(*ast.InterfaceType); ok {
					interfaces[spec.Name.Name] = i
				}
			}
			return true
		})
	}
	parts := []string{"API"}
	for len(parts) > 0 {
		i := interfaces[parts[0]]
		if i == nil {
			t.Fatalf("found no interface %s in internal/cloud", parts[0])
		}
		parts = parts[1:]
		for _, m := range i.Methods.List {
			if part, ok := m.Type.(*ast.Ident); ok {
				parts = append(parts, part.Name)
				continue
			}
			names = append(names, m.Names[0].Name)
		}
	}
	return names
}

// actionsByMethod are the EC2 actions, as IAM spells them, that each method of
// cloud.API calls: through pace.Cloud, which makes the single calls of the client
// in internal/cloud/aws. Tags
// given at creation need a permission of their own (EC2 User Guide, "Grant
// permission to tag Amazon EC2 resources during creation").
func actionsByMethod(t *testing.T) map[string][]string {
	t.Helper()
	direct, through := map[string][]string{}, map[string][]string{}
	files := parse(t, "../internal/cloud/aws")
	maps.Copy(files, parse(t, "../internal/cloud/pace"))
	for _, file := range files {
		for _, d := range file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			name := fn.Name.Name
			ast.Inspect(fn, func(n ast.Node) bool {
				s, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if of, ok := s.X.(*ast.Ident); ok && (of.Name == "c" || of.Name == "p") {
					through[name] = append(through[name], s.Sel.Name)
				}
				switch of, ok := s.X.(*ast.SelectorExpr); {
				case ok && of.Sel.Name == "calls":
					through[name] = append(through[name], s.Sel.Name)
				case ok && of.Sel.Name == "api":
					direct[name] = append(direct[name], "ec2:"+s.Sel.Name)
				}
				return true
			})
		}
	}
	all := map[string][]string{}
	var collect func(method, from string, seen map[string]bool)
	collect = func(method, from string, seen map[string]bool) {
		if seen[from] {
			return
		}
		seen[from] = true
		all[method] = append(all[method], direct[from]...)
		for _, next := range through[from] {
			collect(method, next, seen)
		}
	}
	for _, method := range cloudMethods(t) {
		collect(method, method, map[string]bool{})
	}
	all["CreateENI"] = append(all["CreateENI"], "ec2:CreateTags")
	return all
}

// selectors are the names that the code below some folders, tests aside,
// selects something by: x.Name.
func selectors(t *testing.T, dirs ...string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, dir := range dirs {
		for _, file := range parse(t, dir) {
			ast.Inspect(file, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					if s, ok := call.Fun.(*ast.SelectorExpr); ok {
						names[s.Sel.Name] = true
					}
				}
				return true
			})
		}
	}
	return names
}

// parse reads the Go files below a folder, tests aside, by name.
func parse(t *testing.T, dir string) map[string]*ast.File {
	t.Helper()
	files := map[string]*ast.File{}
	err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			return err
		}
		files[name], err = parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// policyActions are what a policy document allows, in order.
func policyActions(t *testing.T, file string) []string {
	t.Helper()
	var policy struct {
		Statement []struct {
			Effect string
			Action any // one or a list
		}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &policy); err != nil {
		t.Fatal(err)
	}
	var actions []string
	for _, s := range policy.Statement {
		if s.Effect != "Allow" {
			t.Errorf("a statement has the effect %q", s.Effect)
		}
		switch a := s.Action.(type) {
		case string:
			actions = append(actions, a)
		case []any:
			for _, v := range a {
				actions = append(actions, v.(string))
			}
		}
	}
	slices.Sort(actions)
	return slices.Compact(actions)
}
