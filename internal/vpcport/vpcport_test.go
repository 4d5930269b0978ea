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

// Every class has a name and a policy with a bounded backoff. Without backoff the caller looks first.
func TestEveryClassHasAPolicy(t *testing.T) {
	names := map[string]bool{}
	lost := []vpcport.Class{vpcport.Unknown, vpcport.Transient, vpcport.MACTaken, vpcport.Conflict, vpcport.Stale, vpcport.PortGone, vpcport.Bug} // the request may have taken effect
	word := regexp.MustCompile(`^[A-Z][A-Za-z]+$`)
	for _, c := range vpcport.Classes {
		if n := c.String(); n == "" || names[n] || strings.HasPrefix(n, "class(") {
			t.Errorf("class %d: the name %q", int(c), n)
		}
		names[c.String()] = true
		p := vpcport.PolicyOf(c)
		switch {
		case !word.MatchString(p.Reason):
			t.Errorf("%v: the reason %q", c, p.Reason)
		case p.First > p.Last || (p.First == 0) != (p.Last == 0):
			t.Errorf("%v: waits from %v to %v", c, p.First, p.Last)
		case p.First == 0 && !p.Look && c != vpcport.TooLarge: // of which less is asked for at once
			t.Errorf("%v: is repeated at once, and nothing is looked at", c)
		case slices.Contains(lost, c) && !p.Look:
			t.Errorf("%v: is repeated without a look", c)
		case p.Edit && p.First == 0:
			t.Errorf("%v: waits for an edit, and is repeated at once", c)
		}
	}
	if vpcport.PolicyOf(vpcport.Class(99)) != vpcport.PolicyOf(vpcport.Unknown) || vpcport.Class(99).String() != "class(99)" {
		t.Error("a class that there is not has a policy of its own")
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
			t.Errorf("%v: %v; want %v, %s", tc.err, got, tc.want, tc.text)
		}
	}
	if vpcport.ClassOf(nil) != vpcport.Unknown {
		t.Error("no error has a class")
	}
	if !errors.Is(&vpcport.Error{Err: context.Canceled}, context.Canceled) {
		t.Error("the cause is lost")
	}
}

// A port is Berth's, and may be deleted, only by its device and owner, and in its own cluster.
func TestMine(t *testing.T) {
	for _, tc := range []struct {
		device, owner string
		want          bool
	}{
		{vpcport.Device("blue", "u"), vpcport.Owner, true},
		{vpcport.Device("blue", "u"), "compute:nova", false},
		{vpcport.Device("blue", "u"), "", false},
		{vpcport.Device("blue-2", "u"), vpcport.Owner, false},
		{vpcport.Device("blu", "e:u"), vpcport.Owner, false},
		{"berth:blue:", vpcport.Owner, false},
		{"blue:u", vpcport.Owner, false},
		{"6b1f3c9e-0000-4000-8000-000000000000", vpcport.Owner, false},
		{"", vpcport.Owner, false},
	} {
		p := vpcport.Port{Device: tc.device, Owner: tc.owner}
		if got := p.Mine("blue"); got != tc.want {
			t.Errorf("%q of %q: %t", tc.device, tc.owner, got)
		}
	}
	if uid, ok := vpcport.DeviceUID("blue", vpcport.Device("blue", "u-1")); uid != "u-1" || !ok {
		t.Errorf("got %q, %t", uid, ok)
	}
}

// The MAC address of a NIC is the same each time, and no other's.
func TestDerivedMAC(t *testing.T) {
	seen := map[string]string{}
	for _, cluster := range []string{"blue", "red"} {
		for i := range 200 {
			for try := range byte(2) {
				of := fmt.Sprintf("%s %d %d", cluster, i, try)
				m := vpcport.DerivedMAC(cluster, fmt.Sprint("uid-", i), try)
				if len(m) != 6 || m[0]&0x03 != 0x02 {
					t.Errorf("%s: %v is no locally administered address of one host", of, m)
				}
				if again := vpcport.DerivedMAC(cluster, fmt.Sprint("uid-", i), try); again.String() != m.String() {
					t.Errorf("%s: %v, then %v", of, m, again)
				}
				if other, taken := seen[m.String()]; taken {
					t.Errorf("%v is of %s and of %s", m, other, of)
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
			t.Errorf("%+v lets all through", f)
		}
	}
	if !(vpcport.Filter{}).Empty() {
		t.Error("no filter narrows")
	}
}
