package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
	"github.com/berthnet/berth/test/harness"
)

// withBranches is operator mode with pods whose first or further interface is a branch. It needs a
// kernel with VLANs, and so the virtual machine, whose control plane is shared.
func withBranches(m mode) mode {
	s := lab.DefaultSpec(3, "m5.large")
	for i := range s.Instances {
		s.Instances[i].Subnet = s.Instances[0].Subnet // a branch stays in its zone
	}
	m.soak, m.ops, m.pods = m.name+"+branches", 60, branchPods
	m.options = lab.Options{
		Spec: &s, VPCPorts: true, PortCloud: portcloud.NewBranches, OperatorArgs: []string{"--branch-cooling=1s"},
		IPFamilies: ipfamily.Dual, VPCs: vpcsOfFamilies(),
	}
	m.daemon = slices.Concat(named("nodenetwork.", "inventory.save.", "port.", "plug.link.", "plug.vlan.", "plug.routed."), ofPortDaemon)
	m.operator = slices.Concat(m.operator, named("operator.port."))
	m.every = portMode.every
	m.troubles = []trouble{ec2Away, haltOperator, haltOperator, killDaemon, killDaemon, killDaemon, killOperator, killOperator, killOperator}
	m.empty = func(ctx context.Context, l *lab.Lab) error {
		if err := noPorts(ctx, l); err != nil {
			return err
		}
		err := poll.Until(ctx, func() error {
			return l.Kube.Client.DeleteAllOf(ctx, &v1alpha1.PodNIC{}, client.InNamespace(metav1.NamespaceDefault))
		})
		return errors.Join(err, noBranches(ctx, l), backTo(2, 1)(ctx, l), poll.Until(ctx, func() error {
			_, err := trunksOf(l)
			return err
		}))
	}
	return m
}

// vpcsOfFamilies are VPC objects with IPv4-only, IPv6-only and dual-stack branches.
func vpcsOfFamilies() (list []lab.VPC) {
	for _, f := range []ipfamily.Set{ipfamily.OnlyIPv4, ipfamily.OnlyIPv6, ipfamily.Dual} {
		list = append(list, lab.VPC{Name: lab.BranchVPC + "-" + string(f), Spec: v1alpha1.VPCSpec{EC2: &v1alpha1.EC2Spec{IPFamilies: string(f)}}})
	}
	return list
}

// A node of the soak may have nine branches. Pods have at most branchNICs each, and the ninth is for
// branches that cool.
const (
	branchPods = 4
	branchNICs = 2
)

// branchClaims are users' PodNICs, which pods of all nodes use one after the other.
func branchClaims(ctx context.Context, l *lab.Lab, v lab.VPC) (all []*claim, err error) {
	for i := range podNICClaims {
		c, err := keptNIC(ctx, l, v, i)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// drawBranches draws the shape of the next pod: without branches, or with one or two, as its first
// interface or further ones.
func (w *nicPool) drawBranches(dice *rand.Rand) shape {
	kind := dice.IntN(3)
	if kind == 0 {
		return shape{}
	}
	v := w.vpcs[dice.IntN(len(w.vpcs))]
	vpc := v.Name
	s := shape{network: vpc, families: ipfamily.Set(v.Spec.IPFamilies()), beside: kind == 1, options: node.PodOptions{Annotations: map[string]string{v1alpha1.AnnotationVPC: vpc}}}
	names := []string{"eth0", "eth1"}
	if s.beside {
		names = []string{"eth1", "net-1"}
	}
	for _, name := range names[:1+dice.IntN(branchNICs)] {
		n, keys := wantNIC{name: name}, []string{"name: " + name}
		if dice.IntN(3) == 0 {
			n.claim = w.take(vpc, dice)
		}
		if n.claim != nil {
			keys = append(keys, n.claim.entry)
		}
		s.entries, s.nics = append(s.entries, "{"+strings.Join(keys, ", ")+"}"), append(s.nics, n)
	}
	s.options.Annotations[v1alpha1.AnnotationNICs] = "[" + strings.Join(s.entries, ", ") + "]"
	return s
}

// trunksOf are the trunks of the nodes, one each.
func trunksOf(l *lab.Lab) (ids []string, err error) {
	for _, n := range l.Nodes() {
		mine := slices.DeleteFunc(harness.ENIs(l, n), func(e vpc.ENI) bool { return e.Type != "trunk" })
		if len(mine) != 1 {
			return nil, fmt.Errorf("%s has %d trunks, want 1", n.Name, len(mine))
		}
		ids = append(ids, mine[0].ID)
	}
	return ids, nil
}

// noBranches waits until no PodNIC and no ENI of one is left.
func noBranches(ctx context.Context, l *lab.Lab) error {
	return poll.Until(ctx, func() error {
		nics, err := l.Kube.PodNICs(ctx)
		if err != nil {
			return err
		}
		ports, err := l.Ports.Ports(ctx)
		if err != nil {
			return err
		}
		ports = slices.DeleteFunc(ports, func(p portcloud.Port) bool {
			_, warm := p.WarmFor()
			return p.Owner == "" || warm
		})
		return errors.Join(harness.Equal("PodNICs", len(nics), 0), harness.Equal("ENIs of PodNICs", len(ports), 0))
	})
}

// TestSoakDrawsBranches checks that pods of a node never ask for more branches than it may have.
func TestSoakDrawsBranches(t *testing.T) {
	w := &nicPool{branches: true, vpcs: vpcsOfFamilies(), free: map[string][]*claim{}}
	for _, v := range w.vpcs {
		for i := range podNICClaims {
			w.free[v.Name] = append(w.free[v.Name], &claim{vpc: v.Name, entry: fmt.Sprintf("nic: a-%d", i)})
		}
	}
	dice := rand.New(rand.NewPCG(1, 1))
	firsts, besides, drawn := 0, 0, map[string]bool{}
	for range 200 {
		s := w.draw(dice)
		drawn[s.network] = true
		if len(s.nics) > branchNICs {
			t.Errorf("a pod has %d NICs", len(s.nics))
		}
		switch {
		case s.network == "":
		case s.nics[0].name == "eth0" && !s.beside:
			firsts++
		case s.nics[0].name != "eth0" && s.beside:
			besides++
		default:
			t.Errorf("a pod is to have %+v", s)
		}
		w.back(s)
	}
	if firsts < 40 || besides < 40 || len(drawn) != 1+len(w.vpcs) {
		t.Errorf("of 200 pods %d have a branch first and %d beside, in %v", firsts, besides, drawn)
	}
}
