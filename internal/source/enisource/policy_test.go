package enisource

import (
	"context"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/aws"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/lab/cloud/endpoints"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/test/harness/check"
)

// policySpec returns a lab whose instances are nodes of the cluster "lab" unless specified otherwise,
// with an access key that is limited by a policy.
func policySpec(policy string) spec.Spec {
	s := labSpec()
	s.LaunchTags = map[string]string{"kubernetes.io/cluster/lab": "owned"}
	s.AccessKeys = []spec.AccessKey{spec.DefaultAccessKey()}
	s.AccessKeys[0].Actions, s.AccessKeys[0].Policy = nil, policy
	return s
}

// A node whose role has exactly the IAM policy of docs/guides/install/README.md grows and shrinks without being denied
// any call.
func TestDocumentedPolicySuffices(t *testing.T) {
	for name, p := range map[string]ipam.Policy{
		"addresses": {WarmIP: 2}, "whole ENIs": ipam.DefaultAWS(), "prefixes": {PrefixDelegation: true, WarmPrefix: 1},
	} {
		t.Run(name, func(t *testing.T) {
			n := startLab(t, policySpec(deploy.NodePolicy("lab")), p)
			n.owned(t, n.pods(t, 0, 20))
			n.until(t, "it has grown", n.agree)
			grown := len(n.Snapshot().Addresses)
			n.release(20)
			n.until(t, "it shrinks", func() bool { return len(n.Snapshot().Addresses) < grown && n.agree() })
			n.until(t, "surplus ENIs are deleted", func() bool { return len(n.Snapshot().Groups) == 1 && n.agree() })
			for action, calls := range n.lab.Cloud.API.Stats() {
				check.Equal(t, calls.Errors["UnauthorizedOperation"], 0, "denials of %s", action)
			}
		})
	}
}

// With the role of the instance, a node whose instance and primary ENI have no tags works with the same policy, if pods
// get no addresses of the primary ENI. The security group of the nodes is the cluster's.
func TestDocumentedPolicyWithoutTags(t *testing.T) {
	s := policySpec(deploy.NodePolicy("lab"))
	s.Roles = []spec.Role{{Name: "node", Policy: deploy.NodePolicy("lab")}}
	s.LaunchTags = nil
	n := startLab(t, s, ipam.Policy{WarmIP: 2, FirstInterfaceIndex: 1}, func(o *labSetup) { o.instanceRole = true })
	n.owned(t, n.pods(t, 0, 15))
	n.until(t, "it has grown", n.agree)
	n.release(15)
	n.until(t, "surplus ENIs are deleted", func() bool { return len(n.Snapshot().Groups) == 2 && n.agree() })
	check.Equal(t, len(n.denials()), 0, "refused actions: %v", n.denials())
	for _, c := range n.lab.Cloud.API.CallLog() {
		check.Equal(t, strings.HasSuffix(c.Principal, ":assumed-role/node/"+n.id), true, "%s by %s", c.Action, c.Principal)
	}
}

// With Berth's credentials and the policy of either mode, ENIs outside of the cluster cannot be changed,
// and a primary ENI only allows adding addresses.
func TestPolicyDeniesOtherENIs(t *testing.T) {
	for mode, policy := range map[string]string{"node": deploy.NodePolicy("lab"), "operator": deploy.OperatorPolicy("lab")} {
		t.Run(mode, func(t *testing.T) {
			s := policySpec(policy)
			s.Consistency.Describe, s.Delays = 0, spec.Delays{}
			s.VPCs[0].IPv6 = []netip.Prefix{netip.MustParsePrefix("2001:db8::/56")}
			for i := range s.VPCs[0].Subnets {
				if s.VPCs[0].Subnets[i].Name == "a" {
					s.VPCs[0].Subnets[i].IPv6 = netip.MustParsePrefix("2001:db8:0:1::/64")
				}
			}
			root := spec.AccessKey{ID: "AKIALABLABLABLABROOT", Secret: "root"}
			s.AccessKeys = append(s.AccessKeys, root)
			lab := serve(t, s)
			denials(t, lab, labClient(t, lab, root), labClient(t, lab, s.AccessKeys[0]))
		})
	}
}

// labClient returns a client with an access key, or with the role of node-a if that is empty. Its calls are observed by
// at most one observer.
func labClient(t *testing.T, lab *endpoints.Cloud, k spec.AccessKey, observer ...pace.Observer) cloud.API {
	t.Helper()
	t.Setenv("AWS_ACCESS_KEY_ID", k.ID)
	t.Setenv("AWS_SECRET_ACCESS_KEY", k.Secret)
	t.Setenv("AWS_CA_BUNDLE", "") // which the machine may have set, and takes a client of the SDK's
	c := check.Must(aws.New(t.Context(), aws.Options{
		Region: lab.Cloud.Region(), EC2Endpoint: lab.EC2URL, IMDSEndpoint: lab.IMDSURL("node-a"), HTTPClient: &http.Client{},
	}))(t)
	var o pace.Options
	if len(observer) > 0 {
		o.Observer = observer[0]
	}
	return pace.Cloud(c, o)
}

// denials creates ENIs of several owners with administrator credentials, and tries each call on
// each of them with Berth's credentials.
func denials(t *testing.T, lab *endpoints.Cloud, admin, berth cloud.API) {
	ctx := t.Context()
	subnet, ok := lab.Cloud.Snapshot().Subnet("a")
	if !ok {
		t.Fatal("no subnet a")
	}
	node := lab.Cloud.Instances.ID("node-a")
	mine := map[string]string{eni.TagCluster: "lab", eni.TagOwner: eni.Owner, eni.TagInstanceID: node, eni.TagCreatedAt: "2026-01-01T00:00:00Z"}
	must := func(err error) {
		t.Helper()
		check.OK(t, err)
	}
	stranger, err := lab.Cloud.Instances.Launch(spec.Instance{Name: "stranger", Type: "m5.large", Subnet: "a", Tags: map[string]string{"kubernetes.io/cluster/lab": "no"}})
	must(err)

	// attached creates an ENI on the node, with tags and one secondary address of each family.
	attached := func(tags map[string]string) (e cloud.ENI, attachment string) {
		t.Helper()
		e, err := admin.CreateENI(ctx, cloud.CreateENI{SubnetID: subnet.ID, Tags: tags, Amount: cloud.Amount{Addresses: 1, IPv6: 1}})
		must(err)
		attachment, err = admin.AttachENI(ctx, e.ID, node, 1)
		must(err)
		return e, attachment
	}
	detached := func(tags map[string]string) cloud.ENI {
		t.Helper()
		e, err := admin.CreateENI(ctx, cloud.CreateENI{SubnetID: subnet.ID, Tags: tags, Amount: cloud.Amount{Addresses: 1, IPv6: 1}})
		must(err)
		return e
	}
	assign := func(ctx context.Context, e cloud.ENI) error {
		_, err := berth.AssignAddresses(ctx, e.ID, cloud.Amount{Addresses: 1})
		return err
	}
	unassign := func(ctx context.Context, e cloud.ENI) error {
		return berth.UnassignAddresses(ctx, e.ID, cloud.HostPrefixes(e.Addresses))
	}
	assignIPv6 := func(ctx context.Context, e cloud.ENI) error {
		_, err := berth.AssignAddresses(ctx, e.ID, cloud.Amount{IPv6: 1})
		return err
	}
	unassignIPv6 := func(ctx context.Context, e cloud.ENI) error {
		return berth.UnassignAddresses(ctx, e.ID, cloud.HostPrefixes(e.IPv6))
	}
	denied := func(what string, err error) {
		t.Helper()
		check.ErrorSays(t, err, "UnauthorizedOperation")
	}
	allowed := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: unexpected error: %v", what, err)
		}
	}
	changeTag := func(id string, tags map[string]string) error { return berth.Tag(ctx, id, tags) }

	for owner, tags := range map[string]map[string]string{
		"nobody's":        nil,
		"another cluster": {eni.TagCluster: "other", eni.TagOwner: eni.Owner},
	} {
		e, attachment := attached(tags)
		denied("assign to "+owner, assign(ctx, e))
		denied("unassign from "+owner, unassign(ctx, e))
		denied("assign IPv6 to "+owner, assignIPv6(ctx, e))
		denied("unassign IPv6 from "+owner, unassignIPv6(ctx, e))
		denied("modify "+owner, berth.SetDeleteOnTermination(ctx, e.ID, attachment, true))
		denied("detach "+owner, berth.DetachENI(ctx, attachment))
		denied("claim the ENI of "+owner, changeTag(e.ID, mine))
		denied("tag the instance ID of "+owner, changeTag(e.ID, map[string]string{eni.TagInstanceID: node}))
		must(admin.DetachENI(ctx, attachment))
		free := detached(tags)
		_, err := berth.AttachENI(ctx, free.ID, node, 2)
		denied("attach "+owner, err)
		denied("delete "+owner, berth.DeleteENI(ctx, free.ID))
	}

	var primary vpc.ENI
	for _, e := range lab.Cloud.Snapshot().InstanceENIs(node) {
		if e.Attachment.DeviceIndex == 0 {
			primary = e
		}
	}
	own := cloud.ENI{ID: primary.ID}
	allowed("assign to the primary", assign(ctx, own))
	allowed("assign IPv6 to the primary", assignIPv6(ctx, own))
	got, err := admin.ENIs(ctx, cloud.ENIFilter{IDs: []string{primary.ID}})
	must(err)
	allowed("unassign from the primary", unassign(ctx, got[0]))
	allowed("unassign IPv6 from the primary", unassignIPv6(ctx, got[0]))
	denied("modify the primary", berth.SetDeleteOnTermination(ctx, primary.ID, primary.Attachment.ID, false))
	denied("detach the primary", berth.DetachENI(ctx, primary.Attachment.ID))
	denied("delete the primary", berth.DeleteENI(ctx, primary.ID))
	denied("tag the primary", changeTag(primary.ID, mine))
	for _, e := range lab.Cloud.Snapshot().InstanceENIs(stranger.ID) {
		denied("detach an ENI without tags", berth.DetachENI(ctx, e.Attachment.ID))
	}

	_, err = berth.CreateENI(ctx, cloud.CreateENI{SubnetID: subnet.ID})
	denied("create without tags", err)
	_, err = berth.CreateENI(ctx, cloud.CreateENI{SubnetID: subnet.ID, Tags: map[string]string{eni.TagCluster: "other"}})
	denied("create for another cluster", err)
	e, err := berth.CreateENI(ctx, cloud.CreateENI{SubnetID: subnet.ID, Tags: mine, Amount: cloud.Amount{Addresses: 1, IPv6: 1}})
	must(err)
	_, err = berth.AttachENI(ctx, e.ID, stranger.ID, 1)
	denied("attach to an instance that is not a node", err)
	denied("retag it for another cluster", changeTag(e.ID, map[string]string{eni.TagCluster: "other"}))
	denied("tag the node", changeTag(node, map[string]string{eni.TagInstanceID: node}))
	allowed("tag its instance ID", changeTag(e.ID, map[string]string{eni.TagInstanceID: node}))
	attachment, err := berth.AttachENI(ctx, e.ID, node, 1)
	allowed("attach its own", err)
	allowed("modify its own", berth.SetDeleteOnTermination(ctx, e.ID, attachment, true))
	allowed("unassign from its own", unassign(ctx, e))
	allowed("unassign IPv6 from its own", unassignIPv6(ctx, e))
	allowed("assign IPv6 to its own", assignIPv6(ctx, e))
	allowed("detach its own", berth.DetachENI(ctx, attachment))
	allowed("delete its own", berth.DeleteENI(ctx, e.ID))
}
