package deploy_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
)

// The operator's IAM policy allows exactly the EC2 actions that pace.Cloud calls: the operator's
// code uses every method. Tests in internal/ec2/cloud/aws compare the actions of each method with
// the policies of both modes.
func TestOperatorPolicyMatchesCalls(t *testing.T) {
	called := selectors(t, "../internal/ec2/eni", "../internal/vpcport/branch", "../internal/operator", "../cmd/berth-operator")
	for _, method := range cloudMethods() {
		if !called[method] {
			t.Errorf("the operator does not call %s, so its policy does not need the action", method)
		}
	}
	var want []string
	for _, action := range pace.Actions() {
		want = append(want, "ec2:"+action)
	}
	if d := cmp.Diff(want, policyActions(t, "iam/operator.json")); d != "" {
		t.Errorf("actions of iam/operator.json (-called +allowed):\n%s", d)
	}
}

// Nodes in operator mode need no policy: berthd's code for this mode uses no cloud API.
func TestNodesInOperatorModeCallNoEC2(t *testing.T) {
	called := selectors(t, "../internal/source/nodenetworksupplier")
	for _, method := range cloudMethods() {
		// Names that other types use as well.
		if called[method] && !slices.Contains([]string{"ENIs", "Limits", "Subnets", "Instance"}, method) {
			t.Errorf("internal/source/nodenetworksupplier calls %s", method)
		}
	}
	for name, file := range parse(t, "../internal/source/nodenetworksupplier") {
		for _, i := range file.Imports {
			if strings.Contains(i.Path.Value, "/internal/ec2/cloud/aws") || strings.Contains(i.Path.Value, "aws-sdk") {
				t.Errorf("%s imports %s", name, i.Path.Value)
			}
		}
	}
}

func cloudMethods() (names []string) {
	for m := range reflect.TypeFor[cloud.API]().Methods() {
		names = append(names, m.Name)
	}
	return names
}

// selectors returns the names selected in expressions (x.Name) in the code below some folders,
// except tests.
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

// parse parses the Go files below a folder by name, except tests.
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

// policyActions returns the actions that a policy document allows, in order.
func policyActions(t *testing.T, file string) []string {
	t.Helper()
	var policy struct {
		Statement []struct {
			Effect string
			Action any // string or list
		}
	}
	if err := json.Unmarshal(readFile(t, file), &policy); err != nil {
		t.Fatal(err)
	}
	var actions []string
	for _, s := range policy.Statement {
		if s.Effect != "Allow" {
			t.Errorf("effect of a statement = %q, want Allow", s.Effect)
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
