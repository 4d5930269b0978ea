package demo

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/migrate/coil/etcd"
	"github.com/berthnet/berth/lab/replay"
	"github.com/berthnet/berth/lab/run/poll"
)

// recordedObjects creates the objects of a recording. Those of Coil v1 are in etcd: it returns the dump.
func (m *coilMigration) recordedObjects(ctx context.Context, c client.Client, name string) (*etcd.Dump, error) {
	if name != replay.V1 {
		for _, crd := range replay.CRDs() {
			if err := client.IgnoreAlreadyExists(c.Create(ctx, crd)); err != nil {
				return nil, fmt.Errorf("create %s: %w", crd.GetName(), err)
			}
		}
		return nil, poll.Until(ctx, func() error {
			return replay.Apply(ctx, c, name, "Node", "Namespace", "AddressPool", "AddressBlock", "BlockRequest")
		})
	}
	recorded, err := replay.Load(name)
	if err != nil {
		return nil, err
	}
	for _, n := range recorded.Nodes {
		if err := client.IgnoreAlreadyExists(c.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}})); err != nil {
			return nil, err
		}
	}
	for namespace, pool := range map[string]string{"plain": "default", "shop": "shop", "front": "front"} {
		o := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Annotations: map[string]string{"coil.cybozu.com/pool": pool}}}
		if err := client.IgnoreAlreadyExists(c.Create(ctx, o)); err != nil {
			return nil, err
		}
	}
	data, err := replay.EtcdDump()
	if err != nil {
		return nil, err
	}
	m.dump = filepath.Join(m.dir, "etcd.json")
	if err := os.WriteFile(m.dump, data, 0o600); err != nil {
		return nil, err
	}
	d, err := etcd.ParseDump(data, etcd.DefaultPrefix)
	return &d, err
}

// startCoild answers as coild, until stop.
func (m *coilMigration) startCoild() (stop func()) {
	if m.dump != "" {
		l := must(ns.Listen(m.Node.Netns, netip.MustParseAddrPort("127.0.0.1:9383")))
		return func() { _ = l.Close() }
	}
	check(m.StartDaemon(coilNode))
	return func() { m.StopDaemon(coilNode) }
}
