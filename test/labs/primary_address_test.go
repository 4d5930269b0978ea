package labs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestPodUsesOwnAddressOfAnENI sets spec.eni.usePrimaryAddress: a pod gets the primary address of a
// secondary ENI, and has traffic like any other. When the setting is removed the pod keeps the
// address; after the pod the node has it. An ENI with nothing else is released whole.
func TestPodUsesOwnAddressOfAnENI(t *testing.T) {
	t.Parallel()
	o := lab.Options{Nodes: 2, InstanceType: "m5.large"}
	if harness.Families() == ipfamily.OnlyIPv6 { // an ENI has no IPv6 address of its own
		o.IPFamilies = ipfamily.OnlyIPv4
	}
	l := harness.RaiseQuick(t, lab.OperatorMode, o)
	n, far := l.Nodes()[0], l.Nodes()[1]
	other := harness.Add(t, far, "other")

	// Growth is limited to this address until the pod has asked for one.
	harness.Edit(t, l, n.Name, func(s *v1alpha1.NodeNetworkSpec) {
		s.ENI.UsePrimaryAddress, s.ENI.MaxAllocate = new(true), new(int32(1))
	})
	e := aloneOn(t, l, n)
	p := harness.Add(t, n, "own")
	harness.Edit(t, l, n.Name, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.MaxAllocate = nil })
	if p.Addr() != e.Primary {
		t.Fatalf("the pod has %s, want %s, which is the own address of %s", p.Addr(), e.Primary, e.ID)
	}
	served := func() {
		t.Helper()
		harness.Eventually(t, patience, "the pod is served", func() error {
			return errors.Join(
				harness.Talk(t, p, other),
				harness.Asks(t, p.Netns(), fabric.InternetHost, harness.PrimaryAddress(t, l, n)),
				harness.Asks(t, n.Netns, p.Addr(), harness.PrimaryAddress(t, l, n)),
				n.CheckPod(harness.Deadline(t, patience), "own"))
		})
	}
	served()
	available := func(want bool) {
		t.Helper()
		harness.Becomes(t, l, n.Name, fmt.Sprintf("%s is available: %t", e.Primary, want), func(o *v1alpha1.NodeNetwork) error {
			if _, ok := o.Spec.IPAM.Available[e.Primary.String()]; ok != want {
				return fmt.Errorf("it has %v", o.Spec.IPAM.Available)
			}
			return nil
		})
	}
	harness.Settle(t, l)
	address, err := netlink.ParseAddr(e.Primary.String() + "/20")
	harness.OK(t, err)
	harness.OK(t, onLink(n, e, func(l netlink.Link) error { return netlink.AddrAdd(l, address) })) // as network managers do
	served()
	harness.Settle(t, l)

	harness.Edit(t, l, n.Name, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.UsePrimaryAddress = new(false) })
	available(false)
	served()
	harness.Restart(t, n)
	served()
	harness.Remove(t, n, "own")
	harness.Eventually(t, patience, "the node has the address", func() error {
		return onLink(n, e, func(l netlink.Link) error {
			have, err := netlink.AddrList(l, netlink.FAMILY_V4)
			if err == nil && (len(have) != 1 || !have[0].IP.Equal(e.Primary.AsSlice())) {
				err = fmt.Errorf("its link has %v", have)
			}
			return err
		})
	})
	harness.Settle(t, l)

	w, err := l.Kube.Client.Watch(harness.Deadline(t, 4*patience), &v1alpha1.NodeNetworkList{})
	harness.OK(t, err)
	harness.Edit(t, l, n.Name, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.UsePrimaryAddress = new(true) })
	available(true)
	harness.Edit(t, l, n.Name, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.PreAllocate = new(int32) })
	confirmed := make(chan bool, 1)
	go func() { confirmed <- releases(w, n.Name, e.Primary) }()
	harness.Eventually(t, patience, "the ENI is given back", func() error {
		return harness.Equal("ENIs", len(harness.ENIs(l, n)), 1)
	})
	harness.Settle(t, l)
	select { // the watch may trail all that
	case yes := <-confirmed:
		if !yes {
			t.Errorf("%s was never confirmed as released", e.Primary)
		}
	case <-time.After(patience):
		t.Errorf("%s was not seen confirmed as released", e.Primary)
	}
}

// aloneOn waits until the node has one address for pods, the primary address of a secondary ENI.
func aloneOn(t *testing.T, l *lab.Lab, n *node.Node) (own vpc.ENI) {
	t.Helper()
	harness.Becomes(t, l, n.Name, "the own address of an ENI and no other", func(o *v1alpha1.NodeNetwork) error {
		for _, e := range harness.ENIs(l, n) {
			_, ok := o.Spec.IPAM.Available[e.Primary.String()]
			if ok && harness.Addresses(o) == 1 && e.Attachment.DeviceIndex > 0 && len(e.Secondary) == 0 {
				own = e
				return gives(t, n, e.Primary)
			}
		}
		return fmt.Errorf("it has %v", o.Spec.IPAM.Available)
	})
	return own
}

// gives is an error unless a node's daemon has exactly one free address.
func gives(t *testing.T, n *node.Node, a netip.Addr) error {
	doc, err := lab.Document(t.Context(), n)
	four := slices.DeleteFunc(doc.Available, func(a introspect.Available) bool { return a.Address.Is6() })
	if err == nil && (len(four) != 1 || four[0].Address != a) {
		err = fmt.Errorf("its daemon has %+v", doc.Available)
	}
	return err
}

// onLink runs do with the link of an ENI, in the node's network namespace.
func onLink(n *node.Node, e vpc.ENI, do func(netlink.Link) error) error {
	return ns.Do(n.Netns, func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		i := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().HardwareAddr.String() == e.MAC.String() })
		if i < 0 {
			return fmt.Errorf("no link of %s", e.ID)
		}
		return do(links[i])
	})
}

// releases waits until a node confirms that no pod has an address, and ends the watch. It returns
// false if the watch ended before.
func releases(w watch.Interface, name string, a netip.Addr) bool {
	defer w.Stop()
	for event := range w.ResultChan() {
		o, ok := event.Object.(*v1alpha1.NodeNetwork)
		if ok && o.Name == name && slices.Contains(o.Status.IPAM.Released, a.String()) {
			return true
		}
	}
	return false
}
