package eni

import (
	"os"
	"regexp"
	"testing"

	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/vpclab/spec"
)

// A node whose role has the IAM policy of docs/install.md, and nothing else,
// grows and shrinks without being refused once.
func TestPolicySuffices(t *testing.T) {
	policy, err := os.ReadFile("../../../deploy/node-mode/iam-policy.json")
	if err != nil {
		t.Fatal(err)
	}
	actions := regexp.MustCompile(`ec2:[A-Z]\w+`).FindAllString(string(policy), -1)
	for name, p := range map[string]ipam.Policy{"addresses": {WarmIP: 2}, "prefixes": {PrefixDelegation: true, WarmPrefix: 1}} {
		t.Run(name, func(t *testing.T) {
			s := labSpec()
			s.AccessKeys = []spec.AccessKey{spec.DefaultAccessKey()}
			s.AccessKeys[0].Actions = actions
			n := startLab(t, s, p)
			n.pods(t, 0, 20)
			n.until(t, "it has grown", n.agree)
			for i := range 20 {
				n.Release(key(i))
			}
			n.until(t, "surplus ENIs go", func() bool { return len(n.Snapshot().Groups) == 1 && n.agree() })
			for action, calls := range n.lab.Cloud.Calls() {
				if calls.Errors["UnauthorizedOperation"] > 0 {
					t.Errorf("%s was refused", action)
				}
			}
		})
	}
}
