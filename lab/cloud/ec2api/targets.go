package ec2api

import (
	"maps"

	"github.com/berthnet/berth/lab/cloud/vpc"
)

// targets returns the resources that the permission for a call depends on: the resource types of the
// Service Authorization Reference, "Actions defined by Amazon EC2", except those that the lab does not
// have. Actions without targets apply to the resource "*".
func targets(action string, p *params) []vpc.Target {
	// The action reads and validates them again.
	read := &params{values: p.values, numbers: p.numbers, known: map[string]bool{}}
	on := func(ids ...string) (out []vpc.Target) {
		for _, id := range ids {
			if id != "" {
				out = append(out, vpc.Target{Action: action, ID: id})
			}
		}
		return out
	}
	eni := read.text("NetworkInterfaceId")
	switch action {
	case "AssignIpv6Addresses", "AssignPrivateIpAddresses", "DeleteNetworkInterface", "UnassignIpv6Addresses", "UnassignPrivateIpAddresses":
		return on(eni)
	case "AttachNetworkInterface":
		return on(eni, read.text("InstanceId"))
	case "DetachNetworkInterface":
		return on(read.text("AttachmentId"))
	case "ModifyNetworkInterfaceAttribute":
		return append(on(eni, read.text("Attachment.AttachmentId")), on(read.list("SecurityGroupId")...)...)
	case "StartInstances", "StopInstances", "TerminateInstances":
		return on(read.list("InstanceId")...)
	case "CreateTags", "DeleteTags":
		out := on(read.list("ResourceId")...)
		for i := range out {
			out[i].Tags = read.tagged("Tag")
		}
		return out
	case "CreateNetworkInterface":
		subnet := read.text("SubnetId")
		return append(read.creates(action, "network-interface", subnet), on(append(read.list("SecurityGroupId"), subnet)...)...)
	case "RunInstances":
		subnet := read.text("SubnetId")
		out := append(read.creates(action, "instance", subnet), read.creates(action, "network-interface", subnet)...)
		return append(out, on(append(read.list("SecurityGroupId"), subnet)...)...)
	}
	return nil
}

// tagged reads NAME.N.Key and NAME.N.Value without validation.
func (p *params) tagged(name string) map[string]string {
	out := map[string]string{}
	for _, tag := range p.each(name) {
		out[p.text(tag+"Key")] = p.text(tag + "Value")
	}
	return out
}

// creates returns the permissions required to create a resource and, if the call tags it, to tag it.
func (p *params) creates(action, kind, subnet string) []vpc.Target {
	tags := map[string]string{}
	for _, at := range p.each("TagSpecification") {
		if p.text(at+"ResourceType") != kind {
			continue
		}
		maps.Copy(tags, p.tagged(at+"Tag"))
	}
	made := vpc.Target{Action: action, Creates: kind, Subnet: subnet, Tags: tags}
	if len(tags) == 0 {
		return []vpc.Target{made}
	}
	tagged := made
	tagged.Action, tagged.CreateAction = "CreateTags", action
	return []vpc.Target{made, tagged}
}
