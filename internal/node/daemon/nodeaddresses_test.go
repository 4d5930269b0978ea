package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/foreign"
	"github.com/berthnet/berth/internal/node/podevents"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/sourcefake"
)

// addressedKernel is a kernel whose links have addresses.
type addressedKernel struct {
	Upkeep
	has   []datapath.NodeAddress
	fails bool // removing an address
}

func (k *addressedKernel) NodeAddresses(context.Context) ([]datapath.NodeAddress, error) {
	return slices.Clone(k.has), nil
}

func (k *addressedKernel) ForeignRoutes(context.Context) ([]datapath.ForeignRoute, error) {
	return nil, nil
}

// fakeForeign is other software on a node.
type fakeForeign struct{ foreign.Observation }

func (*fakeForeign) Changed() bool { return false }
func (f *fakeForeign) Observe(context.Context, []datapath.ForeignRoute, []attachment.Record) foreign.Observation {
	return f.Observation
}

func (k *addressedKernel) RemoveNodeAddress(_ context.Context, addr netip.Addr) error {
	if k.fails {
		return errors.New("operation not permitted")
	}
	k.has = slices.DeleteFunc(k.has, func(a datapath.NodeAddress) bool { return a.Addr == addr })
	return nil
}

// Addresses that the node itself has are withheld from new pods. A running pod with such an address gets one
// Event, and the address is removed from the node only if configured.
func TestPodAddressesOnTheNode(t *testing.T) {
	for _, c := range []struct {
		name     string
		has      []string // on ens6; "own": on the link of the default route, "InternalIP": the Node lists it
		remove   bool
		fails    bool
		reason   string // of the condition; empty: healthy
		says     string
		events   int
		left     int
		next     string // the address that the next pod gets; empty: none
		pods     int
		withheld int
	}{
		{"none", []string{"10.0.0.1", "192.0.2.1"}, false, false, "", "", 0, 2, "10.0.0.6", 0, 0},
		{"address of a pod", []string{"10.0.0.5"}, false, false, "PodAddressOnNode", "10.0.0.5 on ens6 is the address of pod ns/pod", 1, 1, "10.0.0.6", 1, 0},
		{"node-local address of a pod", []string{"169.254.172.9"}, false, false, "PodAddressOnNode", "169.254.172.9 on ens6", 1, 1, "10.0.0.6", 1, 0},
		{"IPv6 address of a pod", []string{"2001:db8::5"}, false, false, "PodAddressOnNode", "2001:db8::5 on ens6", 1, 1, "10.0.0.6", 1, 0},
		{"free address", []string{"10.0.0.6"}, false, false, "AddressesWithheld", "withheld from pods: 10.0.0.6 on ens6", 0, 1, "10.0.0.7", 0, 1},
		{"all free addresses and a pod's", []string{"10.0.0.5", "10.0.0.6", "10.0.0.7"}, false, false, "PodAddressOnNode", "withheld from pods: 10.0.0.6 on ens6, 10.0.0.7 on ens6", 1, 3, "", 1, 2},
		{"address of a pod, removed", []string{"10.0.0.1", "10.0.0.5"}, true, false, "", "", 0, 1, "10.0.0.6", 0, 0},
		{"free address, not removed", []string{"10.0.0.6"}, true, false, "AddressesWithheld", "10.0.0.6 on ens6", 0, 1, "10.0.0.7", 0, 1},
		{"address of a pod and the node's own", []string{"10.0.0.5 own"}, true, false, "PodAddressOnNode", "the node needs 10.0.0.5 on eth0: move the pool to other subnets, or delete the pod", 1, 1, "10.0.0.6", 1, 0},
		{"address of a pod and an InternalIP", []string{"10.0.0.5 InternalIP"}, true, false, "PodAddressOnNode", "the node needs 10.0.0.5 on ens6: move the pool to other subnets, or delete the pod", 1, 1, "10.0.0.6", 1, 0},
		{"free address and the node's own", []string{"10.0.0.6 own"}, true, false, "AddressesWithheld", "the node needs 10.0.0.6 on eth0: move the pool to other subnets", 0, 1, "10.0.0.7", 0, 1},
		{"the node's own and another", []string{"10.0.0.5", "10.0.0.6 own"}, false, false, "PodAddressOnNode", "remove the addresses other than 10.0.0.6 on eth0 from the node's links", 1, 2, "10.0.0.7", 1, 1},
		{"address of a pod that others have", []string{"10.0.0.5 Coil"}, true, false, "PodAddressShared", "10.0.0.5 (Coil, link veth1, table 116) is also the address of pod ns/pod; addresses held by others become available when their pods are gone", 1, 0, "10.0.0.6", 0, 0},
		{"free address that others have", []string{"10.0.0.6 Coil"}, true, false, "HeldByOthers", "held by others, and withheld from pods: 10.0.0.6 (Coil, link veth1, table 116)", 0, 0, "10.0.0.7", 0, 0},
		{"addresses of both", []string{"10.0.0.7 Coil", "10.0.0.6"}, false, false, "AddressesWithheld", "withheld from pods: 10.0.0.6 on ens6; held by others, and withheld from pods: 10.0.0.7 (Coil, link veth1, table 116); remove these addresses", 0, 1, "", 0, 1},
		{"address of a pod, removal fails", []string{"10.0.0.5"}, true, true, "PodAddressOnNode", "10.0.0.5 on ens6", 1, 1, "10.0.0.6", 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := &addressedKernel{fails: c.fails}
			var ofNode []netip.Addr
			others := &fakeForeign{}
			for _, text := range c.has {
				addr, whose, _ := strings.Cut(text, " ")
				a := datapath.NodeAddress{Addr: netip.MustParseAddr(addr), Link: "ens6"}
				switch whose {
				case "own":
					a.Link, a.Own = "eth0", true
				case "InternalIP":
					ofNode = append(ofNode, a.Addr)
				case "Coil":
					others.Holders = append(others.Holders, foreign.Holder{Addr: a.Addr, System: foreign.Coil, Link: "veth1", Table: 116})
					continue
				}
				k.has = append(k.has, a)
			}
			own := strings.Contains(c.says, "or delete the pod")
			log := slog.New(slog.DiscardHandler)
			store, _, err := attachment.Open(t.TempDir(), attachment.Node{InstanceID: "i-1", BootID: "b-1"}, log)
			must(t, err)
			rec := attachment.Record{
				Key: keyFor("a"), HostLink: hostLinkName(keyFor("a")), State: attachment.Ready,
				Pod: attachment.Pod{Namespace: "ns", Name: "pod", UID: "u"}, Netns: attachment.Netns{Path: "/run/netns/a"},
				Lease: source.Lease{IPv6: netip.MustParseAddr("2001:db8::5"), NodeLocal: netip.MustParseAddr("169.254.172.9")},
			}
			if !strings.Contains(c.name, "node-local") {
				rec.Lease.IPv4, rec.Lease.NodeLocal = netip.MustParseAddr("10.0.0.5"), netip.Addr{}
			}
			must(t, store.Put(rec))
			src := sourcefake.New(clock.Real{}, 0, netip.MustParseAddr("10.0.0.6"), netip.MustParseAddr("10.0.0.7"))
			src.OfNode = ofNode
			var reported []podevents.News
			r := &repairer{
				upkeep: k, foreign: others, store: store, source: src, conditions: newConditions(clock.Real{}, log), log: log,
				repairs:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "repairs"}, nil),
				addresses: nodeAddresses{remove: c.remove, tell: func(n podevents.News) { reported = append(reported, n) }},
			}
			for range 2 {
				must(t, r.lookAtAddresses(t.Context()))
			}
			r.conditions.want(t, ConditionExclusive, c.reason == "", c.says)
			said, _ := r.conditions.get(ConditionExclusive)
			if c.reason != "" && said.Reason != c.reason {
				t.Errorf("reason = %s, want %s", said.Reason, c.reason)
			}
			if len(reported) != c.events || c.events > 0 && (reported[0].Pod != rec.Pod || reported[0].Kind != podevents.AddressShared) {
				t.Errorf("reported %+v, want %d Events of the pod", reported, c.events)
			}
			if own && (len(reported) != 1 || reported[0].Cause != podevents.UsedElsewhere || strings.Contains(said.Message, "remove")) {
				t.Errorf("reported %+v, want no advice to remove the node's own address", reported)
			}
			if len(k.has) != c.left {
				t.Errorf("addresses on the node = %v, want %d", k.has, c.left)
			}
			if pods, withheld, _ := r.addresses.counts(); pods != c.pods || withheld != c.withheld {
				t.Errorf("metrics = %d pods and %d withheld, want %d and %d", pods, withheld, c.pods, c.withheld)
			}
			ctx, end := context.WithCancel(t.Context())
			if c.next == "" {
				end()
			}
			defer end()
			lease, err := src.Acquire(ctx, attachment.Request{Key: keyFor("b")})
			if got := lease.IPv4; (err != nil) != (c.next == "") || err == nil && got.String() != c.next {
				t.Errorf("address of the next pod = %v, %v, want %q", got, err, c.next)
			}
			k.has, others.Holders = nil, nil
			must(t, r.lookAtAddresses(t.Context()))
			r.conditions.want(t, ConditionExclusive, true, "")
		})
	}
}
