package wire

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/berthnet/berth/internal/policy"
)

// addressOf is the i-th address of a network of either family.
func addressOf(i int) netip.Addr {
	a := netip.MustParseAddr("10.0.0.0").As4()
	if i%3 == 0 {
		b := netip.MustParseAddr("fd00::").As16()
		b[13], b[14], b[15] = byte(i>>16), byte(i>>8), byte(i)
		return netip.AddrFrom16(b)
	}
	a[1], a[2], a[3] = byte(i>>16), byte(i>>8), byte(i)
	return netip.AddrFrom4(a)
}

// An update of any size arrives as it was, in parts that gRPC takes, and takes effect with the last one only.
func TestUpdateArrivesInParts(t *testing.T) {
	u := &policy.Update{Version: 7, Whole: true, Pods: map[policy.PodName]*policy.Selected{}, Policies: map[policy.Ref]*policy.Policy{}, Sets: policy.SetChanges{}}
	for i := range 100 {
		name := fmt.Sprint("p", i)
		u.Pods[policy.PodName{Namespace: "a", Name: name}] = &policy.Selected{UID: name, Policies: []policy.Ref{{Namespace: "a", Name: name}}}
		p := &policy.Policy{Ref: policy.Ref{Namespace: "a", Name: name}, Tier: policy.Namespaced, Isolates: [2]bool{true, false}}
		for j := range 100 {
			r := policy.Rule{Peers: []policy.SetID{"pods-1"}, Ports: []policy.Ports{{Protocol: 6, First: 80, Last: 90}}}
			for k := range 20 {
				r.Blocks = append(r.Blocks, netip.PrefixFrom(addressOf(1+3*(j*20+k)), 32))
			}
			p.Rules[policy.Ingress] = append(p.Rules[policy.Ingress], r)
		}
		u.Policies[p.Ref] = p
	}
	u.Pods[policy.PodName{Namespace: "a", Name: "gone"}], u.Policies[policy.Ref{Name: "gone"}] = nil, nil
	for i := range 2345 {
		u.Sets.Of("pods-1").Note(policy.Element{Addr: addressOf(i)}, i%5 != 0)
		u.Sets.Of("ports-2").Note(policy.Element{Addr: addressOf(i), Protocol: 6, Port: uint16(i)}, true)
	}
	u.Sets.Of("ports-2").Whole = true
	parts := Encode(u)
	var d Decoder
	for i, part := range parts {
		if n := proto.Size(part); n > 4<<20 {
			t.Errorf("part %d has %d bytes, want 4 MiB at most", i, n)
		}
		text, err := proto.Marshal(part)
		if err != nil {
			t.Fatal(err)
		}
		received := &Update{}
		if err := proto.Unmarshal(text, received); err != nil {
			t.Fatal(err)
		}
		got, err := d.Add(received)
		if err != nil {
			t.Fatal(err)
		}
		if (got != nil) != (i == len(parts)-1) {
			t.Fatalf("part %d of %d completes the update: %v", i+1, len(parts), got != nil)
		}
		if got != nil {
			if diff := cmp.Diff(u, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
				t.Errorf("the update differs from what was sent (-sent +received):\n%s", diff)
			}
		}
	}
	if len(parts) < 5 {
		t.Errorf("%d parts, want at least 5", len(parts))
	}
}

// Parts of two updates are never mixed, and what a policy cannot have is refused with its name.
func TestDecoderRefusesNonsense(t *testing.T) {
	for name, tt := range map[string]struct {
		parts []*Update
		want  string
	}{
		"parts of two versions": {[]*Update{{Version: 1, More: true}, {Version: 2}}, "part of version 2 within version 1"},
		"tier":                  {[]*Update{{Version: 1, Policies: []*Policy{{Ref: &Ref{Name: "x"}, Tier: 3}}}}, "version 1: ClusterNetworkPolicy x: tier 3 is unknown"},
		"action":                {[]*Update{{Version: 1, Policies: []*Policy{{Ref: &Ref{Name: "x"}, Ingress: &Rules{Rules: []*Rule{{Action: 9}}}}}}}, "Ingress rule 0: action 9 is unknown"},
		"action of the tier":    {[]*Update{{Version: 1, Policies: []*Policy{{Ref: &Ref{Namespace: "a", Name: "x"}, Tier: 1, Ingress: &Rules{Rules: []*Rule{{Action: 1}}}}}}}, "version 1: NetworkPolicy a/x: Ingress rule 0: action Deny of tier NetworkPolicy, expected Accept"},
		"block":                 {[]*Update{{Version: 1, Policies: []*Policy{{Ref: &Ref{Name: "x"}, Egress: &Rules{Rules: []*Rule{{Blocks: []string{"10.0.0.0"}}}}}}}}, "Egress rule 0: netip.ParsePrefix"},
		"ports":                 {[]*Update{{Version: 1, Policies: []*Policy{{Ref: &Ref{Name: "x"}, Egress: &Rules{Rules: []*Rule{{Ports: []*Ports{{Protocol: 6, First: 9, Last: 8}}}}}}}}}, "ports 9-8 of protocol 6"},
		"element":               {[]*Update{{Version: 1, Sets: []*Set{{Id: "pods-1", Came: []byte{1, 2, 3}}}}}, "set pods-1: "},
	} {
		var d Decoder
		var err error
		for _, part := range tt.parts {
			if _, err = d.Add(part); err != nil {
				break
			}
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error = %v, want %q", name, err, tt.want)
		}
	}
}

// Many sets without elements are many parts, too: a node receives messages of a bounded size.
func TestEmptySetsAreInParts(t *testing.T) {
	u := &policy.Update{Version: 1, Sets: policy.SetChanges{}}
	for i := range 10 * partElements {
		u.Sets[policy.SetID(fmt.Sprintf("pods-%016x", i))] = &policy.SetChange{Whole: true}
	}
	var d Decoder
	var read *policy.Update
	for _, part := range Encode(u) {
		if n := proto.Size(part); n > partBytes {
			t.Errorf("a part has %d bytes", n)
		}
		var err error
		if read, err = d.Add(part); err != nil {
			t.Fatal(err)
		}
	}
	if read == nil || len(read.Sets) != len(u.Sets) {
		t.Errorf("read = %v, want all sets", read)
	}
}
