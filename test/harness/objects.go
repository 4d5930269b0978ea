package harness

import (
	"fmt"
	"slices"
	"testing"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/lab/run/node"
)

// NodeNetwork reads a node's NodeNetwork. Like all user actions in this package, it is retried while the API server
// is busy.
func NodeNetwork(t *testing.T, l *lab.Lab, name string) (o *v1alpha1.NodeNetwork) {
	t.Helper()
	Becomes(t, l, name, "read", func(now *v1alpha1.NodeNetwork) error {
		o = now
		return nil
	})
	return o
}

// Becomes waits until check returns nil for a node's NodeNetwork.
func Becomes(t *testing.T, l *lab.Lab, name, what string, check func(*v1alpha1.NodeNetwork) error) {
	t.Helper()
	Eventually(t, Patience, "NodeNetwork "+name+": "+what, func() error {
		o, err := l.Kube.NodeNetwork(t.Context(), name)
		if err != nil {
			return err
		}
		return check(o)
	})
}

// Edit changes the spec of a NodeNetwork, like a user does.
func Edit(t *testing.T, l *lab.Lab, name string, change func(*v1alpha1.NodeNetworkSpec)) {
	t.Helper()
	Eventually(t, Patience, "edit NodeNetwork "+name, func() error {
		return l.Kube.EditNodeNetwork(t.Context(), name, func(o *v1alpha1.NodeNetwork) { change(&o.Spec) })
	})
}

// Blocks returns a node's blocks of the default pool, by index.
func Blocks(t *testing.T, l *lab.Lab, n *node.Node) []v1alpha1.AddressBlock {
	t.Helper()
	var all []v1alpha1.AddressBlock
	OK(t, kube.Retry(Deadline(t, Patience), "list blocks", func() (err error) {
		all, err = l.Kube.Blocks(t.Context())
		return err
	}))
	mine := slices.DeleteFunc(all, func(b v1alpha1.AddressBlock) bool {
		return b.NodeName != n.Name || b.PoolName != v1alpha1.DefaultPool
	})
	slices.SortFunc(mine, func(a, b v1alpha1.AddressBlock) int { return int(a.Index - b.Index) })
	return mine
}

// HasBlocks waits until a node has the given number of blocks of the default pool.
func HasBlocks(t *testing.T, l *lab.Lab, n *node.Node, want int) {
	t.Helper()
	Eventually(t, Patience, fmt.Sprintf("%s has %d blocks", n.Name, want), func() error {
		return Equal("blocks", len(Blocks(t, l, n)), want)
	})
}

// PodNIC returns the PodNIC of a pod's interface.
func PodNIC(t *testing.T, l *lab.Lab, p *node.Pod, link string) *v1alpha1.PodNIC {
	t.Helper()
	all, err := l.Kube.PodNICs(t.Context())
	OK(t, err)
	for i := range all {
		if n := &all[i]; n.Status.Pod != nil && n.Status.Pod.UID == p.UID && n.Status.Interface == link {
			return n
		}
	}
	t.Fatalf("pod %s has no PodNIC for %s", p.Name, link)
	return nil
}
