package vpcport_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/vpcport"
)

// Every class has a name and a policy with a bounded backoff. Without a backoff the caller checks the state first.
func TestEveryClassHasAPolicy(t *testing.T) {
	names := map[string]bool{}
	lost := []vpcport.Class{vpcport.Unknown, vpcport.Transient, vpcport.MACTaken, vpcport.Conflict, vpcport.Stale, vpcport.PortGone, vpcport.Bug} // the request may have taken effect
	word := regexp.MustCompile(`^[A-Z][A-Za-z]+$`)
	for _, c := range vpcport.Classes {
		if n := c.String(); n == "" || names[n] || strings.HasPrefix(n, "class(") {
			t.Errorf("class %d: name = %q", int(c), n)
		}
		names[c.String()] = true
		p := vpcport.PolicyOf(c)
		switch {
		case !word.MatchString(p.Reason):
			t.Errorf("%v: reason = %q", c, p.Reason)
		case p.First > p.Last || (p.First == 0) != (p.Last == 0):
			t.Errorf("%v: backoff from %v to %v", c, p.First, p.Last)
		case p.First == 0 && !p.Look && c != vpcport.TooLarge: // which is split immediately
			t.Errorf("%v: repeated immediately without checking the state", c)
		case slices.Contains(lost, c) && !p.Look:
			t.Errorf("%v: repeated without checking the state", c)
		case p.Edit && p.First == 0:
			t.Errorf("%v: waits for an edit, but is repeated immediately", c)
		}
	}
	if vpcport.PolicyOf(vpcport.Class(99)) != vpcport.PolicyOf(vpcport.Unknown) || vpcport.Class(99).String() != "class(99)" {
		t.Error("an unknown class has another policy or name than Unknown")
	}
}

func TestClassOf(t *testing.T) {
	full := &vpcport.Error{Class: vpcport.SubnetFull, Op: "Neutron POST ports", Status: 409, Type: "IpAddressGenerationFailure", Message: "No more IP addresses"}
	for _, tc := range []struct {
		err  error
		want vpcport.Class
		text string
	}{
		{full, vpcport.SubnetFull, "Neutron POST ports: IpAddressGenerationFailure (409): No more IP addresses"},
		{fmt.Errorf("make ports: %w", full), vpcport.SubnetFull, "make ports: Neutron POST ports: IpAddressGenerationFailure (409): No more IP addresses"},
		{&vpcport.Error{Class: vpcport.Transient, Op: "Alcor GET port", Status: 502}, vpcport.Transient, "Alcor GET port: HTTP 502: "},
		{&vpcport.Error{Class: vpcport.Transient, Op: "Alcor GET port", Err: context.DeadlineExceeded}, vpcport.Transient, "Alcor GET port: context deadline exceeded"},
		{context.Canceled, vpcport.Transient, "context canceled"},
		{errors.New("else"), vpcport.Unknown, "else"},
	} {
		if got := vpcport.ClassOf(tc.err); got != tc.want || tc.err.Error() != tc.text {
			t.Errorf("%v: class = %v; want %v and the text %s", tc.err, got, tc.want, tc.text)
		}
	}
	if vpcport.ClassOf(nil) != vpcport.Unknown {
		t.Error("ClassOf(nil) != Unknown")
	}
	if !errors.Is(&vpcport.Error{Err: context.Canceled}, context.Canceled) {
		t.Error("the error does not wrap its cause")
	}
}

// A port is a NIC's if both its device and its owner are Berth's, in its own cluster. Without a device, name and MAC address must agree.
func TestNICOfPort(t *testing.T) {
	named, derived := vpcport.PortName("u", "shop", "web"), vpcport.DerivedMAC("blue", "u", 3)
	for _, tc := range []struct {
		device, owner, name string
		mac                 mac.Addr
		want                string
	}{
		{vpcport.Device("blue", "u"), vpcport.Owner, "", nil, "u"},
		{vpcport.Device("blue", "u"), "compute:nova", named, derived, ""},
		{vpcport.Device("blue", "u"), "", named, derived, ""},
		{vpcport.Device("blue-2", "u"), vpcport.Owner, named, derived, ""},
		{vpcport.Device("blu", "e:u"), vpcport.Owner, "", nil, ""},
		{"berth:blue:", vpcport.Owner, "", nil, ""},
		{"blue:u", vpcport.Owner, "", nil, ""},
		{"6b1f3c9e-0000-4000-8000-000000000000", vpcport.Owner, named, derived, ""},
		{"", vpcport.Owner, "", nil, ""},
		{"", vpcport.Owner, named, derived, "u"},
		{"", "", named, derived, ""},
		{"", vpcport.Owner, named, nil, ""},
		{"", vpcport.Owner, "web", derived, ""},
		{"", vpcport.Owner, "berth/u", derived, ""},
		{"", vpcport.Owner, "berth//u", vpcport.DerivedMAC("blue", "", 0), ""},
		{"", vpcport.Owner, vpcport.PortName("u-2", "shop", "web"), derived, ""},
		{"", vpcport.Owner, named, vpcport.DerivedMAC("green", "u", 0), ""}, // another cluster's
	} {
		p := vpcport.Port{Device: tc.device, Owner: tc.owner, Name: tc.name, MAC: tc.mac}
		if got, ok := p.NIC("blue"); ok != (tc.want != "") || ok && got != tc.want {
			t.Errorf("NIC() of %+v = %q, %t, want %q", p, got, ok, tc.want)
		}
	}
}

// The MAC address of a NIC is always the same, and no other NIC has it.
func TestDerivedMAC(t *testing.T) {
	seen := map[string]string{}
	for _, cluster := range []string{"blue", "red"} {
		for i := range 200 {
			for try := range byte(2) {
				of := fmt.Sprintf("%s %d %d", cluster, i, try)
				m := vpcport.DerivedMAC(cluster, fmt.Sprint("uid-", i), try)
				if len(m) != 6 || m[0]&0x03 != 0x02 {
					t.Errorf("%s: %v is not a locally administered unicast address", of, m)
				}
				if again := vpcport.DerivedMAC(cluster, fmt.Sprint("uid-", i), try); again.String() != m.String() {
					t.Errorf("%s: DerivedMAC() = %v, then %v", of, m, again)
				}
				if other, taken := seen[m.String()]; taken {
					t.Errorf("%v belongs to both %s and %s", m, other, of)
				}
				seen[m.String()] = of
			}
		}
	}
}

func TestEmptyFilter(t *testing.T) {
	for _, f := range []vpcport.Filter{
		{IDs: []string{"a"}}, {Devices: []string{"a"}}, {MACs: []mac.Addr{{2}}}, {Owner: "a"}, {NetworkID: "n"},
	} {
		if f.Empty() {
			t.Errorf("Empty() of %+v = true", f)
		}
	}
	if !(vpcport.Filter{}).Empty() {
		t.Error("Empty() of the zero filter = false")
	}
}
