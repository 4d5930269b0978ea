package vpcporttest

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/vpcport"
)

// Absent is an ID that nothing has.
const Absent = "00000000-0000-4000-8000-000000000000"

// Fault makes requests with a method fail (empty: all); with Times only so many of them, 0: all.
type Fault struct {
	Method  string
	Times   int
	Delay   time.Duration // by the clock of the service
	After   bool          // the request takes effect before it fails
	HangUp  bool          // in place of a reply
	Status  int           // of the reply; 0: the request's own
	Message string        // of the reply's error
	Falsify func(body []byte) []byte
}

// Service is a provider over HTTP with the fake that it talks to.
type Service struct {
	Name      string // in errors: Neutron
	Networks  string // the collection of networks: networks
	Bed       Bed
	Inject    func(Fault)
	Impatient func() vpcport.Provider // the same with a time-out of 20 ms
}

// RunHTTP tests what all providers over HTTP have in common. Each test has a service of its own from
// open, whose clock stands still.
func RunHTTP(t *testing.T, open func(t *testing.T) Service) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, func(*testing.T) Service){
		"LostReplies": lostReplies, "MessagesAreBounded": boundedMessages, "Timeout": timeout, "Operations": operations, "CreateIsChecked": createIsChecked,
	} {
		t.Run(name, func(t *testing.T) { test(t, open) })
	}
}

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

// A reply that is lost, late or truncated leaves open what became of the request: the port may exist,
// and is found by its device.
func lostReplies(t *testing.T, open func(*testing.T) Service) {
	for _, tc := range []struct {
		name  string
		fault Fault
		there bool
	}{
		{"hung up before", Fault{HangUp: true}, false},
		{"hung up after", Fault{HangUp: true, After: true}, true},
		{"a proxy's time-out after", Fault{Status: 504, After: true}, true},
		{"cut off", Fault{After: true, Falsify: func(b []byte) []byte { return b[:len(b)/2] }}, true},
		{"empty", Fault{After: true, Falsify: Instead("")}, true},
	} {
		s := open(t)
		p, n := s.Bed.Provider, s.Bed.NewPort("u-1")
		tc.fault.Method, tc.fault.Times = http.MethodPost, 1
		s.Inject(tc.fault)
		_, err := p.Create(t.Context(), []vpcport.NewPort{n})
		WantError(t, tc.name, err, vpcport.Transient, "")
		found, err := p.Ports(t.Context(), vpcport.Filter{Devices: []string{n.Device}})
		if err != nil || len(found) == 1 != tc.there {
			t.Errorf("%s: found %v, %v; want it there: %t", tc.name, found, err, tc.there)
		}
		_, err = p.Create(t.Context(), []vpcport.NewPort{n})
		if tc.there {
			WantError(t, tc.name+", asked for again", err, vpcport.MACTaken, n.MAC.String())
		} else if err != nil {
			t.Errorf("%s, asked for again: %v", tc.name, err)
		}
	}
}

// The message of an error cannot fill logs.
func boundedMessages(t *testing.T, open func(*testing.T) Service) {
	s := open(t)
	s.Inject(Fault{Status: 400, Message: strings.Repeat("é\n\x1b[31m", 5000)})
	_, err := s.Bed.Provider.Get(t.Context(), Absent)
	e := WantError(t, "Get", err, vpcport.Invalid, "")
	if n := len([]rune(e.Message)); n > 512 || strings.ContainsAny(e.Message, "\n\x1b") || len([]rune(e.Type)) > 64 {
		t.Errorf("the message has %d characters: %q", n, e.Message)
	}
}

// A server that does not reply is given up, even by a caller that would wait forever.
func timeout(t *testing.T, open func(*testing.T) Service) {
	s := open(t)
	s.Inject(Fault{Delay: time.Hour})
	_, err := s.Impatient().Get(t.Context(), Absent)
	e := WantError(t, "Get", err, vpcport.Transient, "")
	if want := s.Name + " GET ports: no reply in time"; e.Error() != want {
		t.Errorf("got %v, want %s", &e, want)
	}
}

// The operation of an error has no IDs in it, since metrics count by it.
func operations(t *testing.T, open func(*testing.T) Service) {
	s := open(t)
	host, port := s.Bed.Host, s.Bed.Make(t)
	s.Inject(Fault{Method: http.MethodPut, Status: 504})
	_, get := s.Bed.Provider.Get(t.Context(), Absent)
	_, put := s.Bed.Provider.Update(t.Context(), port.ID, 0, vpcport.Change{Host: &host})
	_, network := s.Bed.Provider.Network(t.Context(), Absent)
	var got []string
	for _, err := range []error{get, put, network} {
		got = append(got, err.(*vpcport.Error).Op) //nolint:errorlint // a provider's errors are of this type
	}
	if want := fmt.Sprintf("[%[1]s GET ports %[1]s PUT ports %[1]s GET %[2]s]", s.Name, s.Networks); fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

// A new port that is not the requested one is refused.
func createIsChecked(t *testing.T, open func(*testing.T) Service) {
	hw := vpcport.DerivedMAC("blue", "u-1", 0).String()
	for name, lie := range map[string]func(b Bed) func([]byte) []byte{
		"another network":     func(b Bed) func([]byte) []byte { return Swap(b.Network, Absent) },
		"another device":      func(Bed) func([]byte) []byte { return Swap("berth:blue:u-1", "berth:blue:u-9") },
		"another owner":       func(Bed) func([]byte) []byte { return Swap("compute:berth", "compute:nova") },
		"another MAC address": func(Bed) func([]byte) []byte { return Swap(hw, "fa:16:3e:00:00:01") },
		"no MAC address":      func(Bed) func([]byte) []byte { return Swap(hw, "none") },
		"another subnet":      func(b Bed) func([]byte) []byte { return Swap(b.Subnet, b.Small) },
		"no address":          func(Bed) func([]byte) []byte { return Swap(`"fixed_ips":[{`, `"fixed_ips":[],"x":[{`) },
		"an invalid address":  func(Bed) func([]byte) []byte { return Swap("192.168.0.", "192.168.300.") },
		"another host": func(b Bed) func([]byte) []byte {
			return Swap(`"binding:host_id":"`+b.Host+`"`, `"binding:host_id":"another"`)
		},
		"other groups": func(b Bed) func([]byte) []byte { return Swap(b.Group, Absent) },
		"no reply":     func(Bed) func([]byte) []byte { return Instead(`{}`) },
	} {
		s := open(t)
		s.Inject(Fault{Method: http.MethodPost, After: true, Falsify: lie(s.Bed)})
		n := s.Bed.NewPort("u-1")
		n.Host, n.Groups = s.Bed.Host, []string{s.Bed.Group}
		_, err := s.Bed.Provider.Create(t.Context(), []vpcport.NewPort{n})
		WantError(t, name, err, vpcport.Bug, "")
	}
}
