package eni

import (
	"testing"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/test/harness/check"
)

// What holds for all ENIs holds for adopted ones, too: other network cards, unmanaged ENIs and trunks are left alone. An
// adopted ENI is never taken for an orphan of a vanished instance, even with Berth's tags.
func TestLimitsOfAdoption(t *testing.T) {
	made := func(edit func(*cloud.ENI)) cloud.ENI {
		e := cloud.ENI{
			ID: "eni-1", Description: "aws-K8S-i-1", Tags: map[string]string{"node.k8s.amazonaws.com/instance_id": "i-1"},
			Attachment: &cloud.Attachment{ID: "a-1", InstanceID: "i-1", DeviceIndex: 1, Status: "attached"},
		}
		edit(&e)
		return e
	}
	for what, tc := range map[string]struct {
		e    cloud.ENI
		want bool
	}{
		"attached":             {made(func(*cloud.ENI) {}), true},
		"another network card": {made(func(e *cloud.ENI) { e.Attachment.NetworkCard = 1 }), false},
		"a trunk":              {made(func(e *cloud.ENI) { e.Type = cloud.InterfaceTrunk }), false},
	} {
		check.Equal(t, factsOf(tc.e, "test", "amazon-vpc-cni").ours(), tc.want, "%s", what)
	}
	orphan := made(func(e *cloud.ENI) {
		e.Tags[TagCluster], e.Tags[TagOwner], e.Tags[TagInstanceID], e.Attachment = "test", Owner, "i-1", nil
	})
	c := Collector{Cluster: "test", Alive: func(string) bool { return false }}
	check.Equal(t, c.orphanable(orphan), false, "an adopted ENI with Berth's tags is an orphan")
	detached := made(func(e *cloud.ENI) { e.Attachment = nil })
	check.Equal(t, forInstance(detached, []string{"amazon-vpc-cni"}), "i-1", "instance of a detached ENI")
	check.Equal(t, forInstance(detached, nil), "", "instance without the setting")
}
