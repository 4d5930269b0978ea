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

// The IAM policy that docs/install.md hands out allows what node mode calls and
// nothing else. TestPolicySuffices in internal/source/eni runs a node with it.
func TestPolicyListsTheActionsCalled(t *testing.T) {
	want := actionsCalled(t)
	if got := policyActions(t); !slices.Equal(got, want) {
		t.Errorf("iam-policy.json allows\n\t%v\nthe client calls\n\t%v", got, want)
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

func policyActions(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile("../../../deploy/iam/node.json")
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
