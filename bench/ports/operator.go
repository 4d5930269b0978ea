package ports

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/bench/memapi"
	"github.com/berthnet/berth/internal/operator/podnics"
	provided "github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/lanes"
)

// networks are the one VPC.
type networks struct{ opened podnics.Opened }

func (n networks) Of(string) (podnics.Opened, error) { return n.opened, nil }

func (networks) Changed(func(string)) {}

const (
	vpcName   = "tenant-a"
	namespace = "shop"
)

func vpcSpec() v1alpha1.VPCSpec {
	return v1alpha1.VPCSpec{
		Provider: v1alpha1.ProviderNeutron, Network: network.ID, DefaultSubnets: []string{network.Subnets[0].ID},
		AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{namespace}}, MaxNICsPerNamespace: new(int32(1 << 16)),
	}
}

// operate runs the controller over a provider until ctx ends. Calls pass the limiter of calls in flight, as in production.
func operate(ctx context.Context, api *memapi.API, p provided.Provider) error {
	through := lanes.New(lanes.Options{}).Provider(p, nil)
	return Operate(ctx, api, "bench", podnics.Opened{Provider: through, Network: network, Spec: vpcSpec()})
}

// Operate runs the controller of a cluster with one VPC until ctx ends.
func Operate(ctx context.Context, api *memapi.API, cluster string, vpc podnics.Opened) error {
	mgr, err := memapi.NewManager(api, podnics.Watches())
	if err != nil {
		return err
	}
	if err := podnics.Index(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	if _, err := podnics.Setup(mgr, podnics.Options{Cluster: cluster, Networks: networks{vpc}}); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// NewAPI is an API of the kinds that the controller uses.
func NewAPI() (*memapi.API, error) {
	return memapi.New(
		memapi.Kind{Object: &corev1.Pod{}, Status: true}, memapi.Kind{Object: &corev1.Node{}, Cluster: true, Status: true},
		memapi.Kind{Object: &v1alpha1.PodNIC{}, Status: true}, memapi.Kind{Object: &v1alpha1.VPC{}, Cluster: true, Status: true},
	)
}
