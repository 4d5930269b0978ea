//go:build guest

package conformance

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/lab"
	"github.com/berthnet/berth/internal/lab/portcloud"
	"github.com/berthnet/berth/test/harness"
)

// warm has a pod start while EC2 answers nobody, with a branch that is ready; and the pool go
// once nothing asks for it.
func (b *branches) warm() {
	b.keepReady(1)
	near, far := b.addFirst(b.a, "near", front), b.addFirst(b.b, "far", peers)
	ready := b.inPool("each node has one that is ready", 2)
	b.Cloud.Outage(true)
	next := b.add(b.a, "next", lab.BranchVPC, fmt.Sprintf("[{name: eth0, securityGroups: [%s]}]", front))
	i := slices.IndexFunc(ready, func(p portcloud.Port) bool { return p.Addresses[0].IP == next.Addr() })
	if i < 0 || ready[i].Host != b.a.Name {
		b.Errorf("the pod has %s, want that of one on its node of %+v", next.Addr(), ready)
	}
	b.talk(routed{next, b.a, b.branchOf(next, "eth0")}, far)
	b.Cloud.Outage(false)
	b.inPool("another takes its place", 2)
	harness.Settle(b.T, b.Lab)
	b.deleted(b.a, next, "eth0", b.branchOf(next, "eth0"))
	b.deleted(b.a, near.Pod, "eth0", near.eni)
	b.keepReady(0)
	harness.RemoveAll(b.T, b.b)
	b.empty()
}

// keepReady has so many branches be kept ready, of each set of groups on each node.
func (b *branches) keepReady(n int) {
	b.Helper()
	o := &v1alpha1.VPC{}
	o.Name = lab.BranchVPC
	body := fmt.Appendf(nil, `{"spec":{"ec2":{"warmBranches":%d}}}`, n)
	harness.OK(b.T, b.Kube.Client.Patch(b.Context(), o, client.RawPatch(types.MergePatchType, body)))
}

// inPool waits until so many branches are ready, and returns them.
func (b *branches) inPool(what string, n int) (ready []portcloud.Port) {
	b.Helper()
	harness.Eventually(b.T, harness.Patience, what, func() error {
		ports, err := b.Ports.Ports(b.Context())
		if err != nil {
			return err
		}
		ready = slices.DeleteFunc(ports, func(p portcloud.Port) bool {
			_, warm := p.WarmFor()
			return !warm || p.Host == ""
		})
		if len(ready) != n {
			return errors.New(fmt.Sprintf("%d are: %+v", len(ready), ready))
		}
		return nil
	})
	return ready
}
