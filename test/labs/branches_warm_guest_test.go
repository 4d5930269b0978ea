//go:build guest

package labs

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/test/harness"
)

// warm has a pod start while EC2 answers nobody, with a branch that is ready; and the pool go
// once nothing asks for it.
func (b *branches) warm() {
	b.keepReady(1)
	near, far := b.addFirst(b.a, "near", front), b.addFirst(b.b, "far", peers)
	ready := b.inPool("a branch is ready for the next pod", b.a.Name, front)
	b.Cloud.API.Outage(true)
	next := b.add(b.a, "next", b.vpc, fmt.Sprintf("[{name: eth0, securityGroups: [%s]}]", front))
	for _, a := range next.Addrs {
		if !slices.ContainsFunc(ready.Addresses, func(r portcloud.Address) bool { return r.IP == a }) {
			b.Errorf("the pod has %s, want that of %+v", next.Addrs, ready)
		}
	}
	b.talk(routed{next, b.a, b.branchOf(next, "eth0")}, far)
	b.Cloud.API.Outage(false)
	b.inPool("another takes its place", b.a.Name, front, ready.ID)
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
	o.Name = b.vpc
	body := fmt.Appendf(nil, `{"spec":{"ec2":{"warmBranches":%d}}}`, n)
	harness.OK(b.T, b.Kube.Client.Patch(b.Context(), o, client.RawPatch(types.MergePatchType, body)))
}

// inPool waits until a branch in a group is ready on a node, but certain ones, and returns it. Others may be ready too, for
// pods that were there within ten minutes.
func (b *branches) inPool(what, on, group string, but ...string) (ready portcloud.Port) {
	b.Helper()
	harness.Eventually(b.T, harness.Patience, what, func() error {
		ports, err := b.Ports.Ports(b.Context())
		if err != nil {
			return err
		}
		i := slices.IndexFunc(ports, func(p portcloud.Port) bool {
			_, warm := p.WarmFor()
			return warm && p.Host == on && !slices.Contains(but, p.ID) && slices.Equal(p.Groups, []string{group})
		})
		if i < 0 {
			return fmt.Errorf("none of %+v is", ports)
		}
		ready = ports[i]
		return nil
	})
	return ready
}
