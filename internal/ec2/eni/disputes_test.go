package eni

import (
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/berthnet/berth/internal/ec2/cloud"
)

func TestDisputes(t *testing.T) {
	with := func(e cloud.ENI, p ...string) cloud.ENI { e.Prefixes = prefixes(p...); return e }
	for _, tt := range []struct {
		name        string
		before, now []cloud.ENI
		want        string // assignments that are not believed
	}{
		{"all apart", nil, []cloud.ENI{with(eniOf(1, "10.0.0.4", "10.0.0.5"), "10.0.1.0/28"), with(eniOf(2, "10.0.0.6", "10.0.0.7"), "10.0.1.16/28")}, "[]"},
		{"of two, nobody had it", nil, []cloud.ENI{eniOf(1, "10.0.0.4", "10.0.0.9"), eniOf(2, "10.0.0.6", "10.0.0.9")}, "[10.0.0.9/32 eni-1 10.0.0.9/32 eni-2]"},
		{"of two, the second had it", []cloud.ENI{eniOf(2, "10.0.0.6", "10.0.0.9")}, []cloud.ENI{eniOf(1, "10.0.0.4", "10.0.0.9"), eniOf(2, "10.0.0.6", "10.0.0.9")}, "[10.0.0.9/32 eni-1]"},
		{"its own primary", nil, []cloud.ENI{eniOf(1, "10.0.0.4", "10.0.0.4", "10.0.0.5")}, "[10.0.0.4/32 eni-1]"},
		{"another's primary", []cloud.ENI{eniOf(2, "10.0.0.6", "10.0.0.4")}, []cloud.ENI{eniOf(1, "10.0.0.4"), eniOf(2, "10.0.0.6", "10.0.0.4")}, "[10.0.0.4/32 eni-2]"},
		{"a primary within a prefix", nil, []cloud.ENI{eniOf(1, "10.0.0.4"), with(eniOf(2, "10.0.0.20"), "10.0.0.0/28")}, "[10.0.0.0/28 eni-2]"},
		{"an address within a prefix that was there", []cloud.ENI{with(eniOf(2, "10.0.0.6"), "10.0.1.0/28")},
			[]cloud.ENI{eniOf(1, "10.0.0.4", "10.0.1.3"), with(eniOf(2, "10.0.0.6"), "10.0.1.0/28")}, "[10.0.1.3/32 eni-1]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, d := range disputes(all(tt.before...), all(tt.now...)) {
				got = append(got, d.thing.String(), d.eni)
			}
			if fmt.Sprint(got) != tt.want {
				t.Errorf("got %v, want %s", got, tt.want)
			}
		})
	}
}

func TestDoubles(t *testing.T) {
	one, two, three := eniOf(1, "10.0.0.4"), eniOf(2, "10.0.0.5"), eniOf(3, "10.0.0.6")
	if got := doubles(nil, all(one, two, three)); got != nil {
		t.Errorf("nothing is double, got %v", got)
	}
	mac := two
	mac.MAC = one.MAC
	if got := doubles(all(one), all(one, mac, three)); !slices.Equal(got, []string{"eni-2"}) {
		t.Errorf("the MAC of eni-1 again: got %v, want eni-2, which is new", got)
	}
	if got := doubles(nil, all(one, mac, three)); !slices.Equal(got, []string{"eni-1", "eni-2"}) {
		t.Errorf("both are new: got %v, want both", got)
	}
	address := three
	address.Primary = one.Primary
	if got := doubles(all(one), all(one, two, address)); !slices.Equal(got, []string{"eni-3"}) {
		t.Errorf("the primary address of eni-1 again: got %v, want eni-3", got)
	}
	bare := cloud.ENI{ID: "eni-4"} // such as EFA-only ones
	if got := doubles(nil, all(bare, cloud.ENI{ID: "eni-5"})); got != nil {
		t.Errorf("without addresses: got %v", got)
	}
}

// An ENI keeps its MAC and primary address for life, whatever a listing says.
func TestListingChangesNoENIsIdentity(t *testing.T) {
	v := newView(0, 0)
	was := eniOf(1, "10.0.0.4", "10.0.0.5")
	v.observed(0, was)
	e := eniOf(1, "10.0.0.99", "10.0.0.5", "10.0.0.5")
	e.MAC = net.HardwareAddr{2, 0, 0, 0, 9, 9}
	v.observed(1, e)
	k := v.enis["eni-1"]
	if k.MAC.String() != was.MAC.String() || k.Primary != was.Primary || !slices.Equal(k.held, cloud.HostPrefixes(was.Addresses)) {
		t.Errorf("got %+v", k.facts)
	}
	if len(v.contradictions) != 1 {
		t.Errorf("contradictions %v, want what was listed", v.contradictions)
	}
	v.observed(2, was)
	if len(v.contradictions) > 0 {
		t.Errorf("it is listed as it is, and still: %v", v.contradictions)
	}
}
