package vpcporttest

import (
	"bytes"
	"testing"

	"github.com/berthnet/berth/internal/vpcport"
)

// Absent is an ID that nothing has.
const Absent = "00000000-0000-4000-8000-000000000000"

// NewPort asks for a port with any address of the bed's subnet.
func (b Bed) NewPort(uid string) vpcport.NewPort {
	return vpcport.NewPort{
		NetworkID: b.Network, Name: "default/" + uid, Device: vpcport.Device("blue", uid), MAC: vpcport.DerivedMAC("blue", uid, 0),
		Addresses: []vpcport.NewAddress{{SubnetID: b.Subnet}},
	}
}

// Make makes a port that must be possible.
func (b Bed) Make(t *testing.T, edit ...func(*vpcport.NewPort)) vpcport.Port {
	t.Helper()
	n := b.NewPort("u-1")
	for _, e := range edit {
		e(&n)
	}
	out, err := b.Provider.Create(t.Context(), []vpcport.NewPort{n})
	if err != nil {
		t.Fatal(err)
	}
	return out[0]
}

// WantError checks the class of an error and what it is about, and returns it.
func WantError(t *testing.T, what string, err error, class vpcport.Class, about string) vpcport.Error {
	t.Helper()
	if vpcport.ClassOf(err) != class || err == nil {
		t.Errorf("%s: class %v, want %v: %v", what, vpcport.ClassOf(err), class, err)
		return vpcport.Error{}
	}
	e := err.(*vpcport.Error) //nolint:errorlint // a provider's errors are of this type
	if e.About != about {
		t.Errorf("%s: it is about %q, want %q: %v", what, e.About, about, err)
	}
	return *e
}

// Swap replaces a text in a reply.
func Swap(old, with string) func([]byte) []byte {
	return func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(old), []byte(with)) }
}

// Instead replaces a reply.
func Instead(body string) func([]byte) []byte { return func([]byte) []byte { return []byte(body) } }
