package aws

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// operatorsAlone are the actions that node mode does not call: only the operator has
// branches of trunks.
var operatorsAlone = []string{"ec2:AssociateTrunkInterface", "ec2:DisassociateTrunkInterface"}

// The IAM policies that docs/install.md hands out allow what their mode calls and
// nothing else. TestPolicySuffices in internal/source/eni runs a node with that of node mode.
func TestPoliciesListTheActionsCalled(t *testing.T) {
	want := actionsCalled(t)
	if got := policyActions(t, "operator.json"); !slices.Equal(got, want) {
		t.Errorf("operator.json allows\n\t%v\nthe client calls\n\t%v", got, want)
	}
	want = slices.DeleteFunc(want, func(action string) bool { return slices.Contains(operatorsAlone, action) })
	if got := policyActions(t, "node.json"); !slices.Equal(got, want) {
		t.Errorf("node.json allows\n\t%v\nthe client calls for node mode\n\t%v", got, want)
	}
}

// actionsCalled are the methods of the SDK's EC2 client (c.api) that this
// package's code names, as IAM spells them.
func actionsCalled(t *testing.T) []string {
	t.Helper()
	var actions []string
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		code, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\bc\.api\.(\w+)`).FindAllSubmatch(code, -1) {
			actions = append(actions, "ec2:"+string(m[1]))
		}
	}
	slices.Sort(actions)
	return slices.Compact(actions)
}

// policyActions are what a policy of deploy/iam allows, in order.
func policyActions(t *testing.T, file string) []string {
	t.Helper()
	data, err := os.ReadFile("../../../deploy/iam/" + file)
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
