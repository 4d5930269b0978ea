package aws

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
)

// notInNodeMode are what the client can do and node mode does not ask for: its
// security groups are given by ID.
var notInNodeMode = []string{"ec2:DescribeSecurityGroups"}

// The IAM policy that docs/install.md hands out allows what node mode calls and
// nothing else. TestPolicySuffices in internal/source/eni runs a node with it.
func TestPolicyListsTheActionsCalled(t *testing.T) {
	want := slices.DeleteFunc(actionsCalled(t), func(a string) bool { return slices.Contains(notInNodeMode, a) })
	if got := policyActions(t); !slices.Equal(got, want) {
		t.Errorf("iam-policy.json allows\n\t%v\nthe client calls\n\t%v", got, want)
	}
}

// actionsCalled are the methods of the SDK's EC2 client (c.api) that this
// package's code names, as IAM spells them.
func actionsCalled(t *testing.T) []string {
	t.Helper()
	var actions []string
	files, err := fs.Glob(os.DirFS("."), "*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.SelectorExpr); ok {
				if isEC2(call.X) {
					actions = append(actions, "ec2:"+call.Sel.Name)
				}
			}
			return true
		})
	}
	slices.Sort(actions)
	return slices.Compact(actions)
}

func isEC2(x ast.Expr) bool {
	api, ok := x.(*ast.SelectorExpr)
	if !ok || api.Sel.Name != "api" {
		return false
	}
	client, ok := api.X.(*ast.Ident)
	return ok && client.Name == "c"
}

func policyActions(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile("../../../deploy/node-mode/iam-policy.json")
	if err != nil {
		t.Fatal(err)
	}
	var policy struct {
		Statement []struct {
			Effect string
			Action any // one or a list
		}
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
