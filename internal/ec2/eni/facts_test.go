package eni

import (
	"testing"

	"github.com/berthnet/berth/internal/ec2/cloud"
)

func TestOurs(t *testing.T) {
	made := func(change func(*cloud.ENI)) cloud.ENI {
		e := at(eniOf(2, "10.0.0.5"), 1, "a-2")
		e.Type, e.Description = cloud.InterfaceOrdinary, Description("i-1")
		e.Tags = map[string]string{TagCluster: "test", TagOwner: Owner}
		change(&e)
		return e
	}
	for name, c := range map[string]struct {
		e    cloud.ENI
		want bool
	}{
		"made by Berth":                 {made(func(*cloud.ENI) {}), true},
		"without a description":         {made(func(e *cloud.ENI) { e.Description = "" }), true},
		"detached":                      {made(func(e *cloud.ENI) { e.Attachment = nil }), true},
		"detached, another description": {made(func(e *cloud.ENI) { e.Attachment, e.Description = nil, "database" }), false},
		"of another cluster":            {made(func(e *cloud.ENI) { e.Tags[TagCluster] = "other" }), false},
		"of another owner":              {made(func(e *cloud.ENI) { e.Tags[TagOwner] = "somebody" }), false},
		"unmanaged":                     {made(func(e *cloud.ENI) { e.Tags[TagUnmanaged] = "true" }), false},
		"not unmanaged":                 {made(func(e *cloud.ENI) { e.Tags[TagUnmanaged] = "False" }), true},
		"no ordinary interface":         {made(func(e *cloud.ENI) { e.Type = "efa" }), false},
		"on another network card":       {made(func(e *cloud.ENI) { e.Attachment.NetworkCard = 1 }), false},
		"a trunk":                       {made(func(e *cloud.ENI) { e.Type = cloud.InterfaceTrunk }), true},
		"a detached trunk":              {made(func(e *cloud.ENI) { e.Type, e.Attachment = cloud.InterfaceTrunk, nil }), true},
		"another's trunk":               {made(func(e *cloud.ENI) { e.Type, e.Description = cloud.InterfaceTrunk, "aws-k8s-trunk-eni" }), false},
		"a branch":                      {made(func(e *cloud.ENI) { e.Type, e.Attachment, e.Status = cloud.InterfaceBranch, nil, "in-use" }), false},
		"a branch by its status alone":  {made(func(e *cloud.ENI) { e.Attachment, e.Status = nil, "in-use" }), false},
		"to be a branch":                {made(func(e *cloud.ENI) { e.Attachment, e.Tags[TagNIC] = nil, "uid" }), false},
		"just made":                     {made(func(e *cloud.ENI) { e.Attachment, e.Status = nil, "pending" }), true},
		"the primary":                   {at(eniOf(1, "10.0.0.4"), 0, "a-1"), true},
	} {
		if got := factsOf(c.e, "test").ours(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// What is published of an ENI and stored is known again by the next process.
func TestStoredENI(t *testing.T) {
	e := ENI{ID: "eni-2", DeviceIndex: 2, PrimaryIPv4: addrs("10.0.0.5")[0], Addresses: addrs("10.0.0.5", "10.0.0.7"), Prefixes: prefixes("10.0.1.0/28"), IPv6: addrs("2001:db8::1")}
	f := e.facts("i-1")
	if !f.ours() || f.index() != 2 || primary(f.Attachment) {
		t.Errorf("got %+v", f)
	}
	again := ENI{ID: f.ID, DeviceIndex: f.index(), PrimaryIPv4: f.Primary}
	again.Addresses, again.Prefixes, again.IPv6, again.IPv6Prefixes = split(f.held)
	e.Addresses = e.Addresses[1:] // its own address is no address that EC2 lists for pods
	if !again.Equal(e) {
		t.Errorf("got %+v, want %+v", again, e)
	}
}
