package eni

import (
	"testing"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/test/harness/check"
)

// Berth owns ENIs that a system created for the instance only with the setting, and only if tag, description and
// attachment agree. It never takes an adopted one for an orphan of a vanished instance.
func TestAdoptedENIs(t *testing.T) {
	const name = "amazon-vpc-cni"
	made := func(edit func(*cloud.ENI)) cloud.ENI {
		e := cloud.ENI{
			ID: "eni-1", Description: "aws-K8S-i-1", Tags: map[string]string{"node.k8s.amazonaws.com/instance_id": "i-1"},
			Attachment: &cloud.Attachment{ID: "a-1", InstanceID: "i-1", DeviceIndex: 1, Status: "attached"},
		}
		edit(&e)
		return e
	}
	for what, tc := range map[string]struct {
		e     cloud.ENI
		adopt []string
		want  bool
	}{
		"attached":                  {made(func(*cloud.ENI) {}), []string{name}, true},
		"not asked for":             {made(func(*cloud.ENI) {}), nil, false},
		"detached":                  {made(func(e *cloud.ENI) { e.Attachment = nil }), []string{name}, true},
		"of another instance":       {made(func(e *cloud.ENI) { e.Attachment.InstanceID = "i-2" }), []string{name}, false},
		"another description":       {made(func(e *cloud.ENI) { e.Description = "mine" }), []string{name}, false},
		"without tag":               {made(func(e *cloud.ENI) { e.Tags = nil }), []string{name}, false},
		"another network card":      {made(func(e *cloud.ENI) { e.Attachment.NetworkCard = 1 }), []string{name}, false},
		"excluded by its own tag":   {made(func(e *cloud.ENI) { e.Tags[TagUnmanaged] = "true" }), []string{name}, false},
		"a trunk":                   {made(func(e *cloud.ENI) { e.Type = cloud.InterfaceTrunk }), []string{name}, false},
		"with the tags of Berth":    {made(func(e *cloud.ENI) { e.Tags[TagCluster], e.Tags[TagOwner] = "test", Owner }), nil, true},
		"detached with Berth's tag": {made(func(e *cloud.ENI) { e.Tags[TagCluster], e.Tags[TagOwner], e.Attachment = "test", Owner, nil }), nil, false},
	} {
		check.Equal(t, factsOf(tc.e, "test", tc.adopt...).ours(), tc.want, "%s", what)
	}
	orphan := made(func(e *cloud.ENI) {
		e.Tags[TagCluster], e.Tags[TagOwner], e.Tags[TagInstanceID], e.Attachment = "test", Owner, "i-1", nil
	})
	c := Collector{Cluster: "test", Alive: func(string) bool { return false }}
	check.Equal(t, c.orphanable(orphan), false, "an adopted ENI with Berth's tags is an orphan")
	check.Equal(t, forInstance(made(func(e *cloud.ENI) { e.Attachment = nil }), []string{name}), "i-1", "instance of a detached ENI")
	check.Equal(t, forInstance(made(func(e *cloud.ENI) { e.Attachment = nil }), nil), "", "instance without the setting")
	check.Equal(t, Adoptable()[0], name, "first of the systems that can be adopted from")
}
