//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// agree waits until CRI, the kernel, the daemon and EC2 agree on all sandboxes, like oracle.Check.
func agree(t *testing.T, l *lab.Lab, runtimes ...*containerd) {
	t.Helper()
	harness.Eventually(t, patience, "CRI, kernel, daemon and EC2 agree", func() error {
		var errs []error
		holder := map[netip.Addr]string{}
		for _, c := range runtimes {
			sandboxes, err := c.ready(t)
			errs = append(errs, err, c.compare(t, l.Snapshot(), sandboxes))
			for _, s := range sandboxes {
				if other, taken := holder[s.addr]; taken {
					errs = append(errs, fmt.Errorf("%s is in two sandboxes: %s and %s", s.addr, other, s.name))
				}
				holder[s.addr] = s.name
			}
		}
		return errors.Join(errs...)
	})
}

// ready lists the sandboxes that the runtime calls ready.
func (c *containerd) ready(t *testing.T) (found []*sandbox, err error) {
	list, err := c.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{
		State: &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY},
	}})
	for _, item := range list.GetItems() {
		s, err := c.inspect(t.Context(), item.GetId())
		if err != nil {
			return nil, err
		}
		found = append(found, s)
	}
	return found, err
}

// compare compares one node's sandboxes with all other views.
func (c *containerd) compare(t *testing.T, books vpc.Snapshot, sandboxes []*sandbox) error {
	doc, err := lab.Document(t.Context(), c.node)
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range sandboxes {
		inside, err := addressOf(s.netns)
		if err == nil && inside != s.addr {
			err = fmt.Errorf("%s has %v inside, CRI says %s", s.name, inside, s.addr)
		}
		errs = append(errs, err)
		eni, owned := owner(books, c.node, s.addr)
		if !owned || eni.Primary == s.addr {
			errs = append(errs, fmt.Errorf("%s has %s, which is no secondary address of %s at EC2", s.name, s.addr, c.node.Name))
		}
		i := slices.IndexFunc(doc.Allocated, func(a introspect.Allocated) bool { return a.ContainerID == s.id })
		if i < 0 {
			errs = append(errs, fmt.Errorf("the daemon knows nothing of %s", s.name))
			continue
		}
		if a := doc.Allocated[i]; a.Address != s.addr || a.Pod != s.name || a.Namespace != "default" || a.UID != "uid-"+s.name || a.ENI != eni.ID {
			errs = append(errs, fmt.Errorf("the daemon says %+v of %s with %s on %s", a, s.name, s.addr, eni.ID))
		}
	}
	if len(doc.Allocated) != len(sandboxes) {
		errs = append(errs, fmt.Errorf("%s: %d addresses allocated, %d sandboxes", c.node.Name, len(doc.Allocated), len(sandboxes)))
	}
	links, err := podLinks(c.node)
	if err == nil && len(links) != len(sandboxes) {
		err = fmt.Errorf("%s: pod links %v, %d sandboxes", c.node.Name, links, len(sandboxes))
	}
	return errors.Join(append(errs, err)...)
}

// owner finds the ENI of a node that has an address.
func owner(books vpc.Snapshot, n *node.Node, a netip.Addr) (vpc.ENI, bool) {
	for _, e := range books.InstanceENIs(n.InstanceID) {
		if e.Owns(a) {
			return e, true
		}
	}
	return vpc.ENI{}, false
}

// addressOf reads the IPv4 address of eth0 in a network namespace.
func addressOf(netns string) (found netip.Addr, err error) {
	err = ns.Do(netns, func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		addrs, err := eth0.Addrs()
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
				found = p.Addr()
			}
		}
		return err
	})
	return found, err
}

// podLinks lists Berth's links of pods on a node.
func podLinks(n *node.Node) (names []string, err error) {
	err = ns.Do(n.Netns, func() error {
		links, err := net.Interfaces()
		for _, l := range links {
			if strings.HasPrefix(l.Name, datapath.LinkPrefix) {
				names = append(names, l.Name)
			}
		}
		return err
	})
	return names, err
}

// holds reports whether the daemon has an address allocated to a sandbox.
func holds(doc introspect.Document, s *sandbox) bool {
	return slices.ContainsFunc(doc.Allocated, func(a introspect.Allocated) bool {
		return a.Address == s.addr && a.ContainerID == s.id
	})
}

// cools reports whether an address cools.
func cools(doc introspect.Document, a netip.Addr) bool {
	return slices.ContainsFunc(doc.Cooling, func(c introspect.Cooling) bool { return c.Address == a })
}
