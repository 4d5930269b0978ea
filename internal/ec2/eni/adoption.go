package eni

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/ec2/cloud"
)

// adoption tells how another system marks the ENIs that it creates for an instance.
type adoption struct {
	instanceTag string // its value is the instance's ID; if empty, the description has that in parentheses
	description string // begins the description
	// tag is on all ENIs of the system, unless people turned it off. A detached ENI is not adopted without it.
	tag, value string
}

// adoptions are the systems whose ENIs Berth can adopt, by their names in the setting adopt-enis.
var adoptions = map[string]adoption{
	"amazon-vpc-cni": {instanceTag: "node.k8s.amazonaws.com/instance_id", description: "aws-K8S-"},
	// Cilium 1.20, pkg/aws/ipam/node.go and pkg/defaults. The tag is missing with eni-gc-interval=0.
	"cilium": {description: "Cilium-CNI (", tag: "io.cilium/cilium-managed", value: "true"},
}

// Adoptable lists the names of systems whose ENIs can be adopted.
func Adoptable() []string { return slices.Sorted(maps.Keys(adoptions)) }

// creatorsInstance returns the instance for which one of the systems created an ENI; empty for none. An ENI that is
// attached to another instance than its tag says was moved by someone, and is nobody's.
func creatorsInstance(e cloud.ENI, systems []string) string {
	for _, name := range systems {
		a, ok := adoptions[name]
		rest, is := strings.CutPrefix(e.Description, a.description)
		if !ok || !is {
			continue
		}
		id := e.Tags[a.instanceTag]
		if a.instanceTag == "" {
			id, _ = strings.CutSuffix(rest, ")")
		}
		detached := e.Attachment == nil && (a.tag == "" || e.Tags[a.tag] == a.value)
		if id != "" && (detached || e.Attachment != nil && e.Attachment.InstanceID == id) {
			return id
		}
	}
	return ""
}

// forInstance returns the instance that an ENI is attached to, or that it was created for; empty: unknown.
func forInstance(e cloud.ENI, systems []string) string {
	if e.Attachment != nil {
		return e.Attachment.InstanceID
	}
	return cmp.Or(e.Tags[TagInstanceID], creatorsInstance(e, systems))
}
