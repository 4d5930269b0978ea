package oracle

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab/run/node"
)

// Contradictions between NodeNetworks, and of one with its node, are found.
func TestCheckNetworks(t *testing.T) {
	var objects []v1alpha1.NodeNetwork
	var nodes []*node.Node
	for _, name := range []string{"node-1", "node-2", "gone"} {
		o := v1alpha1.NodeNetwork{Spec: v1alpha1.NodeNetworkSpec{InstanceID: "i-" + name}}
		o.Name = name
		if name != "gone" {
			nodes = append(nodes, &node.Node{Options: node.Options{Name: name, InstanceID: "i-" + name}})
			o.Spec.IPAM.Available = map[string]v1alpha1.AvailableAddress{"10.0.0.77": {Resource: "eni-1"}}
		}
		objects = append(objects, o)
	}
	objects[1].Spec.IPAM.Releasing = []string{"10.0.0.78"}
	networks, errs := compareNetworks(objects, nodes, func(string) bool { return false })
	f := findings{node: nodes[1], network: networks["node-2"]}
	f.checkNetwork(introspect.Document{}, map[netip.Addr]*node.Pod{netip.MustParseAddr("10.0.0.5"): {Name: "p"}})
	all := errors.Join(append(errs, f.errs...)...).Error()
	for _, want := range []string{
		"10.0.0.77 is available in two NodeNetworks: node-1 and node-2",
		"NodeNetwork gone is left over",
		"10.0.0.77 is available, and EC2 has not assigned it",
		"10.0.0.78 is releasing and not available",
		"10.0.0.5 is in use or cools, and is not in status.ipam.used",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("nothing is said about %q:\n%s", want, all)
		}
	}
}
