package berthd

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/berthnet/berth/internal/ec2/cloud"
)

// metadata answers as it is told.
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
