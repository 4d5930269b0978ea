//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestSandboxesUseAlcorLinks makes containerd create sandboxes whose interfaces are links of Alcor's agents. Packets
// pass between nodes, and the link of a NIC that outlives its pod returns to the VPC's namespace, even after berthd
// was killed.
func TestSandboxesUseAlcorLinks(t *testing.T) {
	t.Parallel()
	l := harness.RaiseQuick(t, lab.PortMode, lab.Options{Nodes: 2, NoDaemons: true, PortCloud: portcloud.NewAlcor})
	cloud := l.Ports.(*portcloud.Alcor)
	for _, o := range l.Operators() {
		harness.OK(t, o.Start())
	}
	var runtimes []*containerd
	for _, n := range l.Nodes() {
		c := startContainerd(t, n)
		c.startDaemon(t)
		runtimes = append(runtimes, c)
	}
	ctx := harness.Deadline(t, 5*time.Minute)
	harness.OK(t, l.Kube.WaitVPCs(ctx))
	for _, c := range runtimes {
		c.networkReady(t)
	}
	kept := &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kept"}, Spec: v1alpha1.PodNICSpec{
		VPC: l.VPCs[0].Name, Addresses: []v1alpha1.NICAddress{{Subnet: "subnet-2", IP: "192.168.1.50"}},
	}}
	harness.OK(t, l.Kube.Client.Create(ctx, kept))

	near := runtimes[0].withNICs(t, "near", "[{nic: kept}, {subnet: subnet-1}]")
	far := runtimes[1].withNICs(t, "far", "[{subnet: subnet-1}]")
	if near.addr.String() != "192.168.1.50" {
		t.Errorf("address according to CRI = %s, want 192.168.1.50", near.addr)
	}
	near.answers(t, far.netns, far.addr)
	far.answers(t, near.netns, ipv4Of(t, near.netns, "eth1")) // in the same subnet
	harness.OK(t, runtimes[0].node.Kill())
	near.answers(t, far.netns, far.addr)
	runtimes[0].startDaemon(t)
	harness.Ready(t, runtimes[0].node)

	harness.OK(t, l.Kube.Client.Get(ctx, client.ObjectKeyFromObject(kept), kept))
	for _, s := range []*sandbox{near, far} {
		harness.OK(t, s.on.remove(ctx, s.id))
		s.on.node.Objects.Gone("default", s.name)
	}
	harness.Eventually(t, patience, "only the link of the kept NIC is in the VPC's namespace", func() error {
		home, err := cloud.Home(runtimes[0].node.Name)
		if err == nil && !slices.Equal(home, []string{kept.Status.PortID}) {
			err = fmt.Errorf("ports of the links = %q, want %s", home, kept.Status.PortID)
		}
		return err
	})
	harness.OK(t, l.Kube.Client.Delete(ctx, kept))
	harness.Settle(t, l)
}

// withNICs creates the sandbox of a pod with an annotation for NICs.
func (c *containerd) withNICs(t *testing.T, name, nics string) *sandbox {
	t.Helper()
	ctx := harness.Deadline(t, 2*time.Minute)
	annotations := map[string]string{v1alpha1.AnnotationNICs: nics}
	uid, object, err := c.node.Objects.Bind(ctx, name, node.PodOptions{Namespace: "default", Annotations: annotations})
	harness.OK(t, err)
	config := c.sandboxConfig(object, 0)
	config.Metadata.Uid, config.Annotations = uid, annotations
	reply, err := c.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
	harness.OK(t, err)
	s, err := c.inspect(ctx, reply.GetPodSandboxId())
	harness.OK(t, err)
	s.name = name // name known to the node
	return s
}
