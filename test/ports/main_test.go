// Package ports holds the tests of pods with ports of VPCs, from the annotation to the packet:
// the real plugin, daemon and operator; with a strict Neutron behind Keystone, and the real OVN
// on the nodes; and with a strict Alcor, and its agents on the nodes. Where OVN is not installed
// those of Neutron are left out, and say so.
package ports

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, "berthd", "berth", "berth-operator"))
}

// bench is a lab of two nodes with ports, on which berthd has the privileges that the chart grants.
type bench struct {
	*testing.T
	*lab.Lab
	model     *portcloud.Model // nil in one of Alcor
	alcor     *portcloud.Alcor // nil in one of Neutron
	container *harness.Container
	a, b      *node.Node
}

// raise raises a lab in port mode, with Neutron if o has no other provider.
func raise(t *testing.T, o lab.Options) *bench {
	t.Helper()
	return raiseIn(t, lab.PortMode, o)
}

// raiseIn raises a lab with ports beside another mode.
func raiseIn(t *testing.T, mode lab.Mode, o lab.Options) *bench {
	t.Helper()
	if o.PortCloud == nil {
		harness.CanRun(t, lab.PortMode)
	}
	o.Nodes = 2
	l, c := harness.RaiseContained(t, mode, o)
	b := &bench{T: t, Lab: l, container: c, a: l.Nodes()[0], b: l.Nodes()[1]}
	b.model, _ = l.Ports.(*portcloud.Model)
	b.alcor, _ = l.Ports.(*portcloud.Alcor)
	return b
}

// on is the same lab for a subtest.
func (b *bench) on(t *testing.T) *bench {
	c := *b
	c.T = t
	return &c
}

// pod is a pod with NICs.
func pod(nics string) node.PodOptions {
	return node.PodOptions{Annotations: map[string]string{"berth.dev/nics": nics}, Once: true}
}

// add adds a pod at the first attempt.
func (b *bench) add(n *node.Node, name, nics string) *node.Pod {
	b.Helper()
	o := pod(nics)
	if nics == "" {
		o.Annotations = nil
	}
	return b.addPod(n, name, o)
}

func (b *bench) addPod(n *node.Node, name string, o node.PodOptions) *node.Pod {
	b.Helper()
	p, err := n.AddPod(harness.Deadline(b.T, harness.Patience), name, o)
	harness.OK(b.T, err)
	return p
}

// result is the plugin's result.
func (b *bench) result(p *node.Pod) *types100.Result {
	b.Helper()
	r, err := types100.GetResult(p.Result)
	harness.OK(b.T, err)
	return r
}

// nic is the PodNIC of an interface of a pod.
func (b *bench) nic(p *node.Pod, link string) *v1alpha1.PodNIC {
	b.Helper()
	return harness.PodNIC(b.T, b.Lab, p, link)
}

// reaches waits until a pod gets an answer from another.
func (b *bench) reaches(from, to *node.Pod) {
	b.Helper()
	harness.Eventually(b.T, time.Minute, from.Name+" reaches "+to.Name, func() error {
		ctx, cancel := context.WithTimeout(b.Context(), 5*time.Second)
		defer cancel()
		_, err := from.Ask(ctx, "tcp", to.Addr(), "hello")
		return err
	})
}

// addresses are those of a PodNIC, without prefix lengths.
func addresses(n *v1alpha1.PodNIC) string {
	var all []string
	for _, a := range n.Status.Addresses {
		bare, _, _ := strings.Cut(a.CIDR, "/")
		all = append(all, bare)
	}
	return strings.Join(all, " ")
}

// vpcPod is a pod that names its VPC.
func vpcPod(vpc, nics string) node.PodOptions {
	o := node.PodOptions{Annotations: map[string]string{"berth.dev/vpc": vpc}, Once: true}
	if nics != "" {
		o.Annotations["berth.dev/nics"] = nics
	}
	return o
}

// soon is the deadline of questions that nobody answers.
func soon(t *testing.T) context.Context { return harness.Deadline(t, time.Second) }

// calls counts the provider's calls of a method, of a path below that of ports.
func (b *bench) calls(method, path string) int {
	if b.alcor != nil {
		return b.alcor.Managers.HTTP.Count(method, "/project/*/ports"+path)
	}
	return b.model.Neutron.HTTP.Count(method, "/v2.0/ports"+path)
}
