package labs

import (
	"fmt"
	"slices"
	"testing"

	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestForeignENIsAreLeftAlone has ENIs that are not Berth's: they are neither changed, counted nor
// used, and occupy their device index.
func TestForeignENIsAreLeftAlone(t *testing.T) {
	t.Parallel()
	few := harness.Few(t, "t3.small")
	s := lab.DefaultSpec(3, few.Type)
	s.Instances[0].Interfaces = []spec.Interface{{DeviceIndex: 1, Secondary: 2}}
	s.Instances[1].Interfaces = []spec.Interface{{DeviceIndex: 1, Secondary: 2, Tags: map[string]string{eni.TagUnmanaged: "true"}}}
	s.Instances[2].Interfaces = []spec.Interface{{DeviceIndex: 1, Secondary: 2, Type: "efa"}}
	further := s.VPCs[0].SecurityGroups[0]
	further.Name = "further"
	s.VPCs[0].SecurityGroups = append(s.VPCs[0].SecurityGroups, further)
	l := harness.RaiseQuick(t, lab.NodeMode, lab.Options{Spec: &s, DaemonArgs: lean})
	before := map[string]vpc.ENI{}
	for _, n := range l.Nodes() {
		before[n.Name] = harness.ENIs(l, n)[1]
	}
	// The second node's also has every tag of Berth's.
	second := l.Nodes()[1]
	tags := vpc.Tags{eni.TagCluster: second.Cluster, eni.TagOwner: eni.Owner, eni.TagInstanceID: second.InstanceID}
	harness.OK(t, l.Cloud.CreateTags([]string{before[second.Name].ID}, tags))
	for i, n := range l.Nodes() {
		t.Run([]string{"foreign", "unmanaged", "EFA"}[i], func(t *testing.T) {
			for k := range few.Room() - few.PerENI { // one ENI is not left to Berth
				harness.Add(t, n, fmt.Sprintf("p%d", k))
			}
			full(t, n, "further")
			was := before[n.Name]
			now, _ := l.Snapshot().ENI(was.ID)
			if now.Attachment == nil || !slices.Equal(was.Secondary, now.Secondary) || !slices.Equal(was.IPv6, now.IPv6) || !slices.Equal(was.IPv6Prefixes, now.IPv6Prefixes) || was.Attachment.DeleteOnTermination != now.Attachment.DeleteOnTermination {
				t.Errorf("it was changed from %+v to %+v", was, now)
			}
			for _, e := range harness.Document(t, n).ENIs {
				if e.ID == was.ID {
					t.Errorf("it is counted: %+v", e)
				}
			}
			for _, p := range n.Pods() {
				if slices.ContainsFunc(p.Addrs, was.Owns) {
					t.Errorf("pod %s has an address of it: %v", p.Name, p.Addrs)
				}
			}
			if i == 0 {
				followsGroups(t, l, n, was)
			}
			harness.RemoveAll(t, n)
		})
	}
	harness.Eventually(t, patience, "Berth's own ENIs go back", func() error {
		return harness.Equal("ENIs", len(l.Snapshot().ENIs), (1+few.Resting())*len(l.Nodes()))
	})
	harness.Settle(t, l)
}

// followsGroups changes the security groups of a node's primary ENI: Berth's ENIs get the same,
// foreign ones do not.
func followsGroups(t *testing.T, l *lab.Lab, n *node.Node, others vpc.ENI) {
	t.Helper()
	groups := l.Snapshot().Groups
	i := slices.IndexFunc(groups, func(g vpc.SecurityGroup) bool { return g.Name == "further" })
	want := []string{groups[i].ID}
	harness.OK(t, l.Cloud.ENIs.Modify(harness.ENIs(l, n)[0].ID, vpc.Modification{Groups: want}))
	harness.Eventually(t, patience, "Berth's ENIs have the groups of the primary", func() error {
		for _, e := range harness.ENIs(l, n) {
			if e.ID != others.ID && !slices.Equal(e.Groups, want) {
				return fmt.Errorf("%s has %v", e.ID, e.Groups)
			}
		}
		return nil
	})
	if now, _ := l.Snapshot().ENI(others.ID); !slices.Equal(now.Groups, others.Groups) {
		t.Errorf("another's ENI has %v, and had %v", now.Groups, others.Groups)
	}
	condition(t, n, "SecurityGroupsFollowed", introspect.True)
}
