package ports

import (
	"context"

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

// operate runs the controller until ctx ends. Calls pass lanes, as in production.
func operate(ctx context.Context, api *memapi.API, p provided.Provider) error {
	mgr, err := memapi.NewManager(api, podnics.Watches())
	if err != nil {
		return err
	}
	if err := podnics.Index(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	through := lanes.New(lanes.Options{}).Provider(p, nil)
	_, err = podnics.Setup(mgr, podnics.Options{
		Cluster: "bench", Networks: networks{podnics.Opened{Provider: through, Network: network, Spec: vpcSpec()}},
	})
	if err != nil {
		return err
	}
	return mgr.Start(ctx)
}
