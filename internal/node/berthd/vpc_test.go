package berthd

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/ec2/cloud"
	reconciler "github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/nodenetwork/template"
)

// metadata is a metadata service with one answer.
type metadata struct {
	id  cloud.Identity
	err error
}

func (m metadata) Identity(context.Context) (cloud.Identity, error) { return m.id, m.err }

// The data path follows the CIDRs of the node's own VPC, whatever instance the
// metadata service takes it for meanwhile.
func TestCIDRsOfAnotherInstance(t *testing.T) {
	id := cloud.Identity{InstanceID: "i-1", VPCCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("2001:db8::/56")}}
	n := &vpc{node: &node{log: slog.New(slog.DiscardHandler)}, id: id}
	id.VPCCIDRs = append(id.VPCCIDRs, netip.MustParsePrefix("100.64.0.0/16"))
	n.meta = metadata{id: id}
	if got, ok := n.askVPCCIDRs(t.Context()); !ok || len(got) != 3 || len((&vpcNetworks{}).ofPods(got, false)) != 2 {
		t.Errorf("its own: %v, %v", got, ok)
	}
	id.InstanceID = "i-2"
	n.meta = metadata{id: id}
	if got, ok := n.askVPCCIDRs(t.Context()); ok {
		t.Errorf("those of i-2: %v", got)
	}
	n.meta = metadata{id: n.id, err: errors.New("connection refused")}
	if got, ok := n.askVPCCIDRs(t.Context()); ok {
		t.Errorf("without an answer: %v", got)
	}
}

// A template's settings count over the daemon's own, which come back without one.
func TestSettingsOfATemplate(t *testing.T) {
	base := reconciler.Settings{SubnetIDs: []string{"subnet-1"}, Groups: []string{"sg-1"}, Policy: ipam.DefaultAWS()}
	base.Policy.Families = ipfamily.OnlyIPv4
	if w := wanted(base, nil); w.Template != "" || w.Err != nil || !reflect.DeepEqual(w.Settings, base) {
		t.Errorf("without a template: %+v", w)
	}
	w := wanted(base, &template.Choice{Name: "NodeNetworkTemplate/a", Drain: true, ENI: v1alpha1.ENISpec{
		SubnetTags: map[string]string{"for": "pods"}, FirstInterfaceIndex: new(int32(3)), Trunk: new(true), // which counts in operator mode alone
	}})
	want := base
	want.SubnetIDs, want.SubnetTags, want.Policy.FirstInterfaceIndex, want.DrainOutdated = nil, map[string]string{"for": "pods"}, 3, true
	if w.Template != "NodeNetworkTemplate/a" || w.Err != nil || !reflect.DeepEqual(w.Settings, want) {
		t.Errorf("with one: %+v, want %+v", w, want)
	}
	inv := &reconciler.Inventory{InstanceType: "t3.small", Limits: cloud.Limits{MaxENIs: 3}}
	if err := w.Fits(inv); err == nil || !strings.Contains(err.Error(), "expected at most 2") {
		t.Errorf("device index 3 of three ENIs: %v", err)
	}
	w = wanted(base, &template.Choice{Name: "NodeNetworkTemplate/b", ENI: v1alpha1.ENISpec{WarmIPTarget: new(int32(1)), PreAllocate: new(int32(1))}})
	if w.Err == nil {
		t.Error("both dialects are taken")
	}
}

// Without a way to the Kubernetes API berthd does not start.
func TestTemplatesNeedTheKubernetesAPI(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	m := &nodeMode{vpc: vpc{node: &node{cfg: config.Config{NodeSettings: config.NodeSettings{NodeNetworkTemplates: true}}}}}
	if err := m.check(); err == nil || !strings.Contains(err.Error(), "--node-network-templates: find the Kubernetes API server") || !strings.Contains(err.Error(), "--kubeconfig") {
		t.Errorf("without a service account: %v", err)
	}
	m.cfg.NodeNetworkTemplates = false
	if err := m.check(); err != nil {
		t.Error(err)
	}
}
