package aws

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	sdkcreds "github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/lab/cloud/endpoints"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/test/harness/check"
)

// operatorsAlone lists the actions that only the operator calls, because node mode has no branch ENIs.
var operatorsAlone = []string{"ec2:AssociateTrunkInterface", "ec2:DisassociateTrunkInterface"}

// The IAM policies in docs/guides/install/README.md allow exactly the actions that their mode calls. TestDocumentedPolicySuffices in
// internal/source/enisource runs a node with the node-mode policy.
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

// actionsCalled returns the IAM actions of the SDK methods (c.api) that this package calls.
func actionsCalled(t *testing.T) []string {
	t.Helper()
	var actions []string
	files := check.Must(filepath.Glob("*.go"))(t)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		code := check.Must(os.ReadFile(name))(t)
		for _, m := range regexp.MustCompile(`\bc\.api\.(\w+)`).FindAllSubmatch(code, -1) {
			actions = append(actions, "ec2:"+string(m[1]))
		}
	}
	slices.Sort(actions)
	return slices.Compact(actions)
}

// policyActions returns the sorted actions of a policy in deploy/iam.
func policyActions(t *testing.T, file string) []string {
	t.Helper()
	data := check.Must(os.ReadFile("../../../../deploy/iam/" + file))(t)
	var policy struct {
		Statement []struct {
			Effect string
			Action any // a string or a list
		}
	}
	check.OK(t, json.Unmarshal(data, &policy))
	var actions []string
	for _, s := range policy.Statement {
		check.Equal(t, s.Effect, "Allow", "effect of a statement")
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

// The policies of the operator and of node mode allow only security groups with the cluster's tags, and only on
// ENIs of the cluster. The operator's also allows any association of a branch with a trunk: EC2 authorizes these
// calls without regard to resources.
func TestPoliciesOfBranches(t *testing.T) {
	for mode, policy := range map[string]string{"operator": deploy.OperatorPolicy("lab"), "node": deploy.NodePolicy("lab")} {
		t.Run(mode, func(t *testing.T) {
			s := spec.Default()
			s.Throttle, s.Delays, s.Consistency = "none", spec.Delays{}, spec.Consistency{}
			s.LaunchTags = map[string]string{"kubernetes.io/cluster/lab": "owned"}
			group := func(name, key, value string) spec.SecurityGroup {
				return spec.SecurityGroup{Name: name, ID: "sg-0000000000000000" + name, Tags: map[string]string{key: value}}
			}
			s.VPCs[0].SecurityGroups = append(s.VPCs[0].SecurityGroups, group("1", "berth.dev/cluster", "lab"), group("2", "kubernetes.io/cluster/lab", "owned"),
				group("3", "berth.dev/cluster", "other"), group("4", "kubernetes.io/cluster/other", "owned"))
			s.AccessKeys = []spec.AccessKey{spec.DefaultAccessKey(), {ID: "AKIALABLABLABLABLAB2", Secret: "berth", Policy: policy}}
			lab, err := endpoints.Serve(s)
			check.OK(t, err)
			t.Cleanup(lab.Close)
			as := func(k spec.AccessKey) cloud.API {
				return setup{Options{
					Region: lab.Cloud.Region(), EC2Endpoint: lab.EC2URL, Logger: slog.New(slog.DiscardHandler),
					Credentials: sdkcreds.NewStaticCredentialsProvider(k.ID, k.Secret, ""),
				}, pace.Options{}}.client(t)
			}
			ctx, admin, berth := t.Context(), as(s.AccessKeys[0]), as(s.AccessKeys[1])
			node := check.Must(admin.Instance(ctx, lab.Cloud.Instances.ID("node-a")))(t)
			groups := []string{"sg-00000000000000001", "sg-00000000000000002"}
			create := func(api cloud.API, kind cloud.InterfaceType, cluster string) (string, error) {
				e, err := api.CreateENI(ctx, cloud.CreateENI{SubnetID: node.SubnetID, Type: kind, Tags: map[string]string{"berth.dev/cluster": cluster}})
				return e.ID, err
			}
			wants := func(what string, allowed bool, err error) {
				t.Helper()
				if e, ok := errors.AsType[*cloud.Error](err); allowed && err != nil || !allowed && (!ok || e.Code != "UnauthorizedOperation") {
					t.Errorf("%s: error = %v, want allowed = %v", what, err, allowed)
				}
			}
			operator := mode == "operator"
			for _, theirs := range append([]string{"sg-00000000000000003", "sg-00000000000000004"}, node.ENIs[0].Groups...) {
				with := append([]string{theirs}, groups...)
				_, err := berth.CreateENI(ctx, cloud.CreateENI{SubnetID: node.SubnetID, Groups: with, Tags: map[string]string{"berth.dev/cluster": "lab"}})
				wants("create an ENI with the group "+theirs, !operator, err)
				wants("set the group of an ENI to "+theirs, false, berth.SetGroups(ctx, check.Must(create(admin, "", "lab"))(t), with))
			}
			_, err = berth.CreateENI(ctx, cloud.CreateENI{SubnetID: node.SubnetID, Groups: groups, Tags: map[string]string{"berth.dev/cluster": "lab"}})
			wants("create an ENI with groups of the cluster", true, err)

			_, err = create(berth, cloud.InterfaceTrunk, "other")
			wants("create a trunk of another cluster", false, err)
			trunk, err := create(berth, cloud.InterfaceTrunk, "lab")
			wants("create a trunk", true, err)
			_, err = berth.AttachENI(ctx, trunk, node.ID, 1)
			wants("attach the trunk", true, err)
			for vlan, of := range []string{"lab", "other"} {
				id := check.Must(create(admin, "", of))(t)
				wants("set groups of an ENI of cluster "+of, of == "lab", berth.SetGroups(ctx, id, groups))
				asked := cloud.Association{TrunkID: trunk, BranchID: id, VLAN: 1 + vlan}
				a, err := berth.AssociateBranch(ctx, asked, "")
				wants("associate a branch of cluster "+of, operator, err)
				if !operator {
					a = check.Must(admin.AssociateBranch(ctx, asked, ""))(t)
				}
				wants("set groups of a branch of cluster "+of, of == "lab", berth.SetGroups(ctx, id, groups))
				wants("disassociate a branch of cluster "+of, operator, berth.DisassociateBranch(ctx, a.ID))
			}
		})
	}
}

// With the policy of node mode, the role of the instances plugs ENIs into the instance that the credentials were
// issued to, which needs no tag, and into no other one, whatever its tags. A pod's role has no instance: there the tag
// of the node counts.
func TestNodesRoleIsFencedToItsInstance(t *testing.T) {
	s := spec.Default()
	s.Throttle, s.Delays, s.Consistency = "none", spec.Delays{}, spec.Consistency{}
	s.Roles = []spec.Role{{Name: "node", Policy: deploy.NodePolicy("lab")}}
	owned := map[string]string{"kubernetes.io/cluster/lab": "owned"}
	s.Instances = append(s.Instances, spec.Instance{Name: "tagged", Type: "m5.large", Subnet: "a", Tags: owned})
	s.AccessKeys = []spec.AccessKey{spec.DefaultAccessKey(), {ID: "AKIALABLABLABLABLAB2", Secret: "berth", Policy: deploy.NodePolicy("lab")}}
	lab := check.Must(endpoints.Serve(s))(t)
	t.Cleanup(lab.Close)
	as := func(id, secret, token string) cloud.API {
		return setup{Options{
			Region: lab.Cloud.Region(), EC2Endpoint: lab.EC2URL, Logger: slog.New(slog.DiscardHandler),
			Credentials: sdkcreds.NewStaticCredentialsProvider(id, secret, token),
		}, pace.Options{}}.client(t)
	}
	_, stolen, _ := lab.Cloud.Keys.RoleCredentials(lab.Cloud.Instances.ID("node-a"))
	admin, ctx := as(s.AccessKeys[0].ID, s.AccessKeys[0].Secret, ""), t.Context()
	for _, tt := range []struct {
		who, instance string
		api           cloud.API
		allowed       bool
	}{
		{"node-a", "node-a", as(stolen.ID, stolen.Secret, stolen.Token), true},
		{"node-a", "tagged", as(stolen.ID, stolen.Secret, stolen.Token), false},
		{"a pod's role", "node-a", as(s.AccessKeys[1].ID, s.AccessKeys[1].Secret, ""), false},
		{"a pod's role", "tagged", as(s.AccessKeys[1].ID, s.AccessKeys[1].Secret, ""), true},
	} {
		t.Run(tt.who+" on "+tt.instance, func(t *testing.T) {
			wants := func(what string, err error) {
				t.Helper()
				if e, ok := errors.AsType[*cloud.Error](err); tt.allowed && err != nil || !tt.allowed && (!ok || e.Code != "UnauthorizedOperation") {
					t.Errorf("%s: error = %v, want allowed = %v", what, err, tt.allowed)
				}
			}
			id := lab.Cloud.Instances.ID(tt.instance)
			create := func() string {
				e := check.Must(tt.api.CreateENI(ctx, cloud.CreateENI{
					SubnetID: check.Must(admin.Instance(ctx, id))(t).SubnetID, Tags: map[string]string{"berth.dev/cluster": "lab"},
				}))(t)
				return e.ID
			}
			spare, mine := create(), create()
			_, err := tt.api.AttachENI(ctx, spare, id, 1)
			wants("attach", err)
			attachment := check.Must(admin.AttachENI(ctx, mine, id, 2))(t)
			wants("set DeleteOnTermination", tt.api.SetDeleteOnTermination(ctx, mine, attachment, true))
			wants("detach", tt.api.DetachENI(ctx, attachment))
			if !tt.allowed {
				check.OK(t, admin.DetachENI(ctx, attachment))
			}
		})
	}
}
