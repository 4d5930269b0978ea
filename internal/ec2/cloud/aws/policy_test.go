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

// operatorsAlone are the actions that node mode does not call: only the operator has
// branches of trunks.
var operatorsAlone = []string{"ec2:AssociateTrunkInterface", "ec2:DisassociateTrunkInterface"}

// The IAM policies that docs/install.md hands out allow what their mode calls and
// nothing else. TestPolicySuffices in internal/source/enisource runs a node with that of node mode.
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

// policyActions are what a policy of deploy/iam allows, in order.
func policyActions(t *testing.T, file string) []string {
	t.Helper()
	data := check.Must(os.ReadFile("../../../../deploy/iam/" + file))(t)
	var policy struct {
		Statement []struct {
			Effect string
			Action any // one or a list
		}
	}
	check.OK(t, json.Unmarshal(data, &policy))
	var actions []string
	for _, s := range policy.Statement {
		check.Equal(t, s.Effect, "Allow", "the effect of a statement")
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

// Whoever has the credentials of the operator or of a node in node mode gives groups with the cluster's tags to ENIs
// of the cluster. Those of the operator also make any ENI a branch of any trunk, and end any association: EC2 judges these
// calls by no resource.
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
					t.Errorf("%s: got %v, want it allowed: %v", what, err, allowed)
				}
			}
			operator := mode == "operator"
			for _, theirs := range append([]string{"sg-00000000000000003", "sg-00000000000000004"}, node.ENIs[0].Groups...) {
				with := append([]string{theirs}, groups...)
				_, err := berth.CreateENI(ctx, cloud.CreateENI{SubnetID: node.SubnetID, Groups: with, Tags: map[string]string{"berth.dev/cluster": "lab"}})
				wants("make an ENI with the group "+theirs, !operator, err)
				wants("give an ENI the group "+theirs, false, berth.SetGroups(ctx, check.Must(create(admin, "", "lab"))(t), with))
			}
			_, err = berth.CreateENI(ctx, cloud.CreateENI{SubnetID: node.SubnetID, Groups: groups, Tags: map[string]string{"berth.dev/cluster": "lab"}})
			wants("make an ENI with groups of the cluster", true, err)

			_, err = create(berth, cloud.InterfaceTrunk, "other")
			wants("make another cluster's trunk", false, err)
			trunk, err := create(berth, cloud.InterfaceTrunk, "lab")
			wants("make a trunk", true, err)
			_, err = berth.AttachENI(ctx, trunk, node.ID, 1)
			wants("attach it", true, err)
			for vlan, of := range []string{"lab", "other"} {
				id := check.Must(create(admin, "", of))(t)
				wants("groups of "+of, of == "lab", berth.SetGroups(ctx, id, groups))
				asked := cloud.Association{TrunkID: trunk, BranchID: id, VLAN: 1 + vlan}
				a, err := berth.AssociateBranch(ctx, asked, "")
				wants("associate of "+of, operator, err)
				if !operator {
					a = check.Must(admin.AssociateBranch(ctx, asked, ""))(t)
				}
				wants("groups of a branch of "+of, of == "lab", berth.SetGroups(ctx, id, groups))
				wants("disassociate of "+of, operator, berth.DisassociateBranch(ctx, a.ID))
			}
		})
	}
}
