package lab

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/network/fabric"
)

// TestFrameWithIPv6 raises a lab without Berth: each node, also a later one, has an IPv6 address, and reaches the
// others, the internet and the metadata service.
func TestFrameWithIPv6(t *testing.T) {
	l := start(t, Options{Nodes: 2, IPFamilies: ipfamily.Dual})
	if _, err := l.Cloud.Instances.Launch(spec.Instance{Name: "late", Type: "m5.large", Subnet: "b", Role: "node"}); err != nil {
		t.Fatal(err)
	}
	l.WaitEvents()
	s, err := l.Status(t.Context())
	ok(t, err)
	if s.VPCIPv6 != "2001:db8:1::/56" || s.Families != ipfamily.Dual || len(s.Nodes) != 3 {
		t.Fatalf("status %+v", s)
	}
	for i, n := range l.Nodes() {
		own := OwnAddrs(l, n)
		if len(own) != 2 || own[1] != s.Nodes[slices.IndexFunc(s.Nodes, func(x NodeStatus) bool { return x.Name == n.Name })].IPv6 {
			t.Fatalf("%s has %v, the status is %+v", n.Name, own, s.Nodes)
		}
		for families, want := range map[ipfamily.Set][]netip.Addr{ipfamily.OnlyIPv4: own[:1], ipfamily.OnlyIPv6: own[1:], ipfamily.Dual: own} {
			of := &Lab{Options: Options{Mode: NodeMode, IPFamilies: families}, Cloud: l.Cloud, Fabric: l.Fabric}
			if got := of.NodeAddrs(n); !slices.Equal(got, want) {
				t.Errorf("%s has %v of %s, want %v", n.Name, got, families, want)
			}
		}
		for _, to := range []netip.Addr{OwnAddrs(l, l.Nodes()[(i+1)%3])[1], fabric.InternetHost6, fabric.OnPremHost6} {
			r, err := n.Ask(t.Context(), "udp", to, "x")
			if err != nil || r.You != own[1] {
				t.Errorf("%s to %s: %q, %v", n.Name, to, r, err)
			}
		}
		got, err := n.Get(t.Context(), "http://[fd00:ec2::254]/latest/meta-data/ipv6")
		if err != nil || got != own[1].String() {
			t.Errorf("the metadata of %s has %q, %v", n.Name, got, err)
		}
		if !slices.Contains(n.Args, "--ip-families=dual") {
			t.Errorf("berthd of %s is started with %q", n.Name, n.Args)
		}
	}
	if err := reach(t, l.Fabric.InternetPath(), OwnAddrs(l, l.Nodes()[0])[1], 200*time.Millisecond); err == nil {
		t.Error("a node is reached from the internet, which its security group does not allow")
	}
}

func TestFamiliesAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		o    Options
		want string
	}{
		"a word":    {Options{IPFamilies: "IPv6"}, `IP families: "IPv6": expected ipv4, ipv6 or dual`},
		"pool mode": {Options{IPFamilies: ipfamily.Dual, Mode: PoolMode, KubeAssets: "x"}, `IP families "dual": of modes node and operator only`},
		"port mode": {Options{IPFamilies: ipfamily.OnlyIPv6, Mode: PortMode, KubeAssets: "x"}, `IP families "ipv6": of modes node and operator only`},
		"egress":    {Options{IPv6Egress: true, Mode: PoolMode, KubeAssets: "x"}, `egress of IPv6: of modes node and operator only`},
	} {
		tc.o.Dir, tc.o.NoDaemons = t.TempDir(), true
		if _, err := Start(t.Context(), tc.o); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
	vpc := DefaultSpec(1, "m5.large")
	for _, families := range []ipfamily.Set{ipfamily.OnlyIPv4, ipfamily.Dual, ipfamily.OnlyIPv6} {
		if _, err := (Options{Mode: OperatorMode, Spec: &vpc, IPFamilies: families, Kubelets: &Kubelets{}}).completeFamilies(); err != nil {
			t.Errorf("kubelets with %s: %v", families, err)
		}
	}
	_, err := Options{Mode: OperatorMode, Spec: &vpc, IPv6Egress: true, Kubelets: &Kubelets{}}.completeFamilies()
	if want := "egress of IPv6: clusters with kubelets have IPv6 for pods or not at all: give IP families, or leave out kubelets"; err == nil || err.Error() != want {
		t.Errorf("kubelets with egress of IPv6: got %v, want %q", err, want)
	}
}

// TestWithIPv6 completes a spec, and keeps what it has.
func TestWithIPv6(t *testing.T) {
	s := DefaultSpec(1, "m5.large")
	egress := []spec.Rule{{Protocol: "-1", CIDRs: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}}
	s.VPCs[0].SecurityGroups[0].Egress = &egress
	own := spec.VPC{Name: "own", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}, IPv6: []netip.Prefix{netip.MustParsePrefix("2600:1f14:abc:de00::/56")}}
	s.VPCs = append(s.VPCs, own)
	got, err := WithIPv6(s)
	ok(t, err)
	if _, err := got.Complete(); err != nil {
		t.Error(err)
	}
	v := got.VPCs[0]
	if v.Subnets[0].IPv6.String() != "2001:db8:1::/64" || v.Subnets[1].IPv6.String() != "2001:db8:1:1::/64" || !v.Subnets[1].AssignIPv6 {
		t.Errorf("subnets %+v", v.Subnets)
	}
	for i, want := range []string{"[10.0.0.0/16 192.168.100.0/24 2001:db8:1::/56 fd64:0:0:100::/64]", "[0.0.0.0/0 ::/0]", "[0.0.0.0/0 ::/0]"} {
		if got := text6(v.SecurityGroups[0].Ingress[i].CIDRs); got != want {
			t.Errorf("ingress rule %d is of %s, want %s", i, got, want)
		}
	}
	if got := text6((*v.SecurityGroups[0].Egress)[0].CIDRs); got != "[0.0.0.0/0 ::/0]" {
		t.Errorf("egress is of %s", got)
	}
	if text6(got.VPCs[1].IPv6) != text6(own.IPv6) || len(s.VPCs[0].IPv6) > 0 || s.VPCs[0].Subnets[0].AssignIPv6 || len(egress[0].CIDRs) != 1 {
		t.Errorf("what there was has changed: %+v, %+v", got.VPCs[1], s.VPCs[0])
	}
}

func text6(list []netip.Prefix) string {
	var words []string
	for _, p := range list {
		words = append(words, p.String())
	}
	return "[" + strings.Join(words, " ") + "]"
}

// TestMaxPods counts the pods of an m5.large, whose three ENIs have ten addresses each.
func TestMaxPods(t *testing.T) {
	for _, tc := range []struct {
		mode     Mode
		families ipfamily.Set
		want     int
	}{
		{NodeMode, "", 3*9 + 2},
		{OperatorMode, ipfamily.Dual, 2*9 + 2},
		{NodeMode, ipfamily.OnlyIPv6, 0},
	} {
		o := Options{Mode: tc.mode, IPFamilies: tc.families}
		if got := o.maxPods("m5.large"); got != tc.want {
			t.Errorf("%s mode, %q: %d pods, want %d", tc.mode, tc.families, got, tc.want)
		}
	}
}
