package enisource

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

// EC2's reply is wrong once. No pod gets an address that is not its ENI's, and the node finds out by a
// lookup.
func TestRepliesThatCannotBeTrue(t *testing.T) {
	const (
		assign  = "AssignPrivateIpAddresses"
		create  = "CreateNetworkInterface"
		list    = "DescribeNetworkInterfaces"
		address = "(<assignedPrivateIpAddressesSet><item><privateIpAddress>)[^<]*"
		more    = "()(</assignedPrivateIpAddressesSet>)"
		another = "<item><privateIpAddress>%s</privateIpAddress></item>$2"
	)
	// What is lied about, as the books have it.
	type books struct{ primary, other, stranger vpc.ENI }
	for name, lie := range map[string]func(b books) spec.Fault{
		"assigned: the primary address": func(b books) spec.Fault {
			return spec.Fault{Action: assign, Pattern: address, Replacement: "${1}" + b.primary.Primary.String()}
		},
		"assigned: an address of another ENI": func(b books) spec.Fault {
			return spec.Fault{Action: assign, Pattern: address, Replacement: "${1}" + b.other.Secondary[0].String()}
		},
		"assigned: the primary address of another ENI": func(b books) spec.Fault {
			return spec.Fault{Action: assign, Pattern: address, Replacement: "${1}" + b.other.Primary.String()}
		},
		"assigned: an address outside of the subnet": func(books) spec.Fault {
			return spec.Fault{Action: assign, Pattern: address, Replacement: "${1}10.9.0.9"}
		},
		"assigned: one more": func(books) spec.Fault {
			return spec.Fault{Action: assign, Pattern: more, Replacement: fmt.Sprintf(another, "10.0.3.200")}
		},
		"assigned: one twice": func(books) spec.Fault {
			return spec.Fault{Action: assign, Pattern: "(<item>.*?</item>)(</assignedPrivateIpAddressesSet>)", Replacement: "$1$1$2"}
		},
		"assigned: to another ENI": func(b books) spec.Fault {
			return spec.Fault{Action: assign, Pattern: b.primary.ID, Replacement: b.other.ID}
		},
		"created: with an address of another": func(b books) spec.Fault {
			return spec.Fault{Action: create, Pattern: "(<privateIpAddress>)[^<]*(</privateIpAddress><privateDnsName>[^<]*</privateDnsName><primary>false)",
				Replacement: "${1}" + b.other.Secondary[0].String() + "${2}"}
		},
		"created: the primary ENI": func(b books) spec.Fault {
			return spec.Fault{Action: create, Pattern: "(<networkInterfaceId>)[^<]*", Replacement: "${1}" + b.primary.ID}
		},
		"created: the primary ENI of another instance": func(b books) spec.Fault {
			return spec.Fault{Action: create, Pattern: "(<networkInterfaceId>)[^<]*", Replacement: "${1}" + b.stranger.ID}
		},
		"created: with the MAC address of the primary": func(b books) spec.Fault {
			return spec.Fault{Action: create, Pattern: "(<macAddress>)[^<]*", Replacement: "${1}" + b.primary.MAC.String()}
		},
		"attached: by the attachment of another": func(b books) spec.Fault {
			return spec.Fault{Action: "AttachNetworkInterface", Pattern: "(<attachmentId>)[^<]*", Replacement: "${1}" + b.other.Attachment.ID}
		},
		"listed: every ENI with the primary address of the node": func(b books) spec.Fault {
			return spec.Fault{Action: list, Pattern: "(<privateIpAddress>)[^<]*(</privateIpAddress><privateDnsName>[^<]*</privateDnsName><primary>false)",
				Replacement: "${1}" + b.primary.Primary.String() + "${2}", Count: 3}
		},
		"listed: every ENI with one MAC address": func(b books) spec.Fault {
			return spec.Fault{Action: list, Pattern: "(<macAddress>)[^<]*", Replacement: "${1}" + b.primary.MAC.String(), Count: 3}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := labSpec()
			s.Instances[0].Interfaces = []spec.Interface{{DeviceIndex: 1, Secondary: 1, DeleteOnTermination: true}}
			lab := serve(t, s)
			on := func(instance string, index int) vpc.ENI {
				for _, e := range lab.Cloud.Snapshot().InstanceENIs(lab.Cloud.Instances.ID(instance)) {
					if e.Attachment.DeviceIndex == index {
						return e
					}
				}
				t.Fatalf("%s has no ENI at index %d", instance, index)
				return vpc.ENI{}
			}
			fault := lie(books{on("node-a", 0), on("node-a", 1), on("node-b", 0)})
			fault.Kind, fault.Count = "wrongReply", max(1, fault.Count)
			if _, err := lab.Cloud.API.Inject(fault); err != nil {
				t.Fatal(err)
			}
			n := startOn(t, lab, ipam.Policy{WarmIP: 1}, &memStore{}, nil)
			const pods = 12 // the primary ENI has room for nine
			n.owned(t, n.pods(t, 0, pods))
			n.until(t, "the reply was given", func() bool { return len(lab.Cloud.API.Faults()) == 0 })
			agree := func() bool {
				own := map[netip.Addr]string{}
				for _, a := range n.Snapshot().Addresses {
					own[a.Addr] = a.ENI
				}
				for _, e := range lab.Cloud.Snapshot().InstanceENIs(n.id) {
					for _, a := range e.Secondary {
						if e.Attachment.DeviceIndex != 1 && own[a] != e.ID {
							return false
						}
						delete(own, a)
					}
				}
				return len(own) == 0
			}
			n.until(t, "the books agree", agree)
		})
	}
}

// A reply to a creation may leave the tags out: the ENI is attached at once all the same, as Berth's
// own.
func TestCreationsWithoutTagsInTheReply(t *testing.T) {
	lab := serve(t, labSpec())
	if _, err := lab.Cloud.API.Inject(spec.Fault{Kind: "wrongReply", Action: "CreateNetworkInterface", Pattern: "(?s)<tagSet>.*?</tagSet>", Replacement: "<tagSet/>"}); err != nil {
		t.Fatal(err)
	}
	n := startOn(t, lab, ipam.Policy{WarmIP: 1}, &memStore{}, nil)
	n.pods(t, 0, 12) // the primary ENI has room for nine
	if met := lab.Cloud.API.FaultsMet()["wrongReply"]; met == 0 {
		t.Fatal("no reply was changed")
	}
	if errors := lab.Cloud.API.Stats()["AttachNetworkInterface"].Errors; len(errors) > 0 {
		t.Errorf("attaching: %v", errors)
	}
	for _, c := range lab.Cloud.API.CallLog() {
		if c.Params["Filter.1.Name"] != nil && c.Params["Filter.1.Name"][0] == "network-interface-id" {
			t.Errorf("%v was described singly: its creation was not believed", c.Params["Filter.1.Value.1"])
		}
	}
}
