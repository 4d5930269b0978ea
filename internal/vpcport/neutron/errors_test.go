package neutron_test

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/neutron"
	"github.com/berthnet/berth/internal/vpcport/vpcporttest"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
)

// Every unsuccessful reply has a class, whoever sends it.
func TestClassesOfAnswers(t *testing.T) {
	for _, tc := range []struct {
		status        int
		kind, message string
		after         int
		create, get   vpcport.Class
	}{
		{400, "InvalidInput", "Invalid input for operation: no.", 0, vpcport.Invalid, vpcport.Invalid},
		{401, "", "", 0, vpcport.Unauthorized, vpcport.Unauthorized},
		{403, "PolicyNotAuthorized", "(rule:create_port) is disallowed by policy", 0, vpcport.Forbidden, vpcport.Forbidden},
		{404, "PortNotFound", "Port x could not be found.", 0, vpcport.Transient, vpcport.PortGone},
		{404, "HTTPNotFound", "The resource could not be found.", 0, vpcport.Transient, vpcport.PortGone},
		{404, "", "<html>nothing here</html>", 0, vpcport.Transient, vpcport.Transient},
		{404, "", "", 0, vpcport.Transient, vpcport.Transient},
		{408, "", "", 0, vpcport.Transient, vpcport.Transient},
		{409, "IpAddressGenerationFailureAllSubnets", "No more IP addresses available.", 0, vpcport.SubnetFull, vpcport.SubnetFull},
		{409, "IpAddressInUse", "Unable to complete operation. The IP address is in use.", 0, vpcport.AddressTaken, vpcport.AddressTaken},
		{409, "IpAddressGenerationFailureNoMatchingSubnet", "No valid service subnet.", 0, vpcport.Invalid, vpcport.Invalid},
		{409, "PortInUse", "Unable to complete operation.", 0, vpcport.Conflict, vpcport.Conflict},
		{412, "", "<html>Precondition Failed</html>", 0, vpcport.Stale, vpcport.Stale},
		{413, "", "Request is too large.", 0, vpcport.TooLarge, vpcport.TooLarge},
		{429, "", "slow down", 3, vpcport.Throttled, vpcport.Throttled},
		{429, "", "", 0, vpcport.Throttled, vpcport.Throttled},
		{500, "HTTPInternalServerError", "Request Failed: internal server error while processing your request.", 0, vpcport.Transient, vpcport.Transient},
		{500, "PortNotFound", "what is in a 500 is not believed", 0, vpcport.Transient, vpcport.Transient},
		{502, "", "<html>Bad Gateway</html>", 0, vpcport.Transient, vpcport.Transient},
		{503, "", "", 0, vpcport.Transient, vpcport.Transient},
		{503, "", "", 30, vpcport.Throttled, vpcport.Throttled},
		{504, "", "", 0, vpcport.Transient, vpcport.Transient},
		{202, "", "", 0, vpcport.Invalid, vpcport.Invalid},
	} {
		b := newBed(t, neutronfake.Options{})
		b.cloud.HTTP.Inject(neutronfake.Fault{Status: tc.status, Type: tc.kind, Message: tc.message, RetryAfter: tc.after})
		_, cerr := b.provider.Create(t.Context(), []vpcport.NewPort{{NetworkID: b.network.ID}})
		_, gerr := b.provider.Get(t.Context(), vpcporttest.Absent)
		if vpcport.ClassOf(cerr) != tc.create || vpcport.ClassOf(gerr) != tc.get {
			t.Errorf("%d %s: Create %v, want %v; Get %v, want %v", tc.status, tc.kind, cerr, tc.create, gerr, tc.get)
		}
		e, ok := gerr.(*vpcport.Error) //nolint:errorlint // a provider's errors are of this type
		if !ok || e.Status != tc.status || e.Type != tc.kind || e.RetryAfter != time.Duration(tc.after)*time.Second || e.Message == "" || strings.Contains(e.Message, "<") {
			t.Errorf("%d %s: got %+v", tc.status, tc.kind, e)
		}
		if n := b.cloud.HTTP.Count(http.MethodPost, "/v2.0/ports"); n != 1 {
			t.Errorf("%d: asked %d times", tc.status, n)
		}
	}
}

// A 404 of a proxy does not mean that Neutron has deleted a port.
func TestDeleteBelievesNeutronOnly(t *testing.T) {
	b := newBed(t, neutronfake.Options{})
	p := b.make(t)
	b.cloud.HTTP.Inject(neutronfake.Fault{Method: http.MethodDelete, Status: 404, Message: "<html>no backend</html>", Times: 1})
	if err := b.provider.Delete(t.Context(), p.ID); vpcport.ClassOf(err) != vpcport.Transient {
		t.Errorf("by a proxy: %v", err)
	}
	if err := b.provider.Delete(t.Context(), p.ID); err != nil || len(b.cloud.Ports()) != 0 {
		t.Errorf("by Neutron: %v, ports %v", err, b.cloud.Ports())
	}
}

// An error has the name that caused it, even in a request for several ports.
func TestAbout(t *testing.T) {
	taken := netip.MustParseAddr("192.168.0.7")
	for _, tc := range []struct {
		name  string
		edit  func(*bed, *vpcport.NewPort)
		class vpcport.Class
		about func(*bed) string
	}{
		{"network", func(_ *bed, n *vpcport.NewPort) { n.NetworkID = vpcporttest.Absent }, vpcport.NetworkGone, func(*bed) string { return vpcporttest.Absent }},
		{"subnet", func(_ *bed, n *vpcport.NewPort) { n.Addresses[0].SubnetID = vpcporttest.Absent }, vpcport.ReferenceGone, func(*bed) string { return vpcporttest.Absent }},
		{"group", func(b *bed, n *vpcport.NewPort) { n.Groups = []string{b.group.ID, vpcporttest.Absent} }, vpcport.ReferenceGone, func(*bed) string { return vpcporttest.Absent }},
		{"group's form", func(_ *bed, n *vpcport.NewPort) { n.Groups = []string{"web"} }, vpcport.Invalid, func(*bed) string { return "web" }},
		{"address", func(_ *bed, n *vpcport.NewPort) { n.Addresses[0].IP = taken }, vpcport.AddressTaken, func(*bed) string { return taken.String() }},
		{"address outside", func(_ *bed, n *vpcport.NewPort) { n.Addresses[0].IP = netip.MustParseAddr("10.0.0.1") }, vpcport.Invalid, func(*bed) string { return "10.0.0.1" }},
		{"broadcast address", func(_ *bed, n *vpcport.NewPort) { n.Addresses[0].IP = netip.MustParseAddr("192.168.0.255") }, vpcport.Invalid, func(*bed) string { return "192.168.0.255" }},
		{"MAC address", func(_ *bed, n *vpcport.NewPort) { n.MAC = vpcport.DerivedMAC("blue", "u-1", 0) }, vpcport.MACTaken, func(*bed) string { return vpcport.DerivedMAC("blue", "u-1", 0).String() }},
		{"full subnet among others", func(b *bed, n *vpcport.NewPort) { n.Addresses[0].SubnetID = b.small.ID }, vpcport.SubnetFull, func(*bed) string { return "" }},
	} {
		b := newBed(t, neutronfake.Options{})
		b.make(t, func(n *vpcport.NewPort) { n.Addresses[0].IP = taken })
		if tc.class == vpcport.SubnetFull {
			b.fill()
		}
		near := b.newPort("u-2") // whose address begins with the taken one's characters
		near.Addresses[0].IP = netip.MustParseAddr("192.168.0.77")
		out := b.newPort("u-3")
		tc.edit(b, &out)
		before := len(b.cloud.Ports())
		_, err := b.provider.Create(t.Context(), []vpcport.NewPort{near, out})
		vpcporttest.WantError(t, tc.name, err, tc.class, tc.about(b))
		if len(b.cloud.Ports()) != before {
			t.Errorf("%s: something is left of it", tc.name)
		}
	}
}

// fill fills the small subnet.
func (b *bed) fill() {
	for ip := b.small.Gateway.Next(); b.small.CIDR.Contains(ip.Next()); ip = ip.Next() {
		b.cloud.AddPort(neutronfake.Port{Network: b.network.ID, FixedIPs: []neutronfake.FixedIP{{Subnet: b.small.ID, IP: ip}}})
	}
}

// A full subnet is named although Neutron names only the network.
func TestFullSubnetIsNamed(t *testing.T) {
	b := newBed(t, neutronfake.Options{})
	b.fill()
	n := b.newPort("u-1")
	n.Addresses[0].SubnetID = b.small.ID
	_, err := b.provider.Create(t.Context(), []vpcport.NewPort{n})
	e := vpcporttest.WantError(t, "Create", err, vpcport.SubnetFull, b.small.ID)
	if e.Type != "IpAddressGenerationFailure" {
		t.Errorf("got %v", &e)
	}
}

// A call ends with its context, even while it waits for a token that another call requested.
func TestContextEnds(t *testing.T) {
	b := withKeystone(t, neutronfake.Options{Clock: start()}, neutronfake.User{})
	b.cloud.HTTP.Inject(neutronfake.Fault{Path: tokens, Delay: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 2)
	for range 2 {
		go func() { _, err := b.provider.Get(ctx, vpcporttest.Absent); errs <- err }()
	}
	cancel()
	for range 2 {
		if err := <-errs; vpcport.ClassOf(err) != vpcport.Transient {
			t.Errorf("got %v", err)
		}
	}
	b.cloud.HTTP.ClearFaults()
	if _, err := b.provider.Get(t.Context(), vpcporttest.Absent); vpcport.ClassOf(err) != vpcport.PortGone {
		t.Errorf("after that: %v", err)
	}
}

// Errors do not have the password, the secret or the token, even if a server echoes them.
func TestSecretsAreConcealed(t *testing.T) {
	b := withKeystone(t, neutronfake.Options{}, neutronfake.User{Credential: "credential-1", Secret: "battery staple"})
	application := b.open(t, func(s *neutron.Settings) {
		s.TLS.Insecure = true
		s.Credentials = &neutron.Credentials{Application: &neutron.Application{ID: "credential-1", Secret: "battery staple"}}
	})
	if _, err := b.provider.Get(t.Context(), vpcporttest.Absent); vpcport.ClassOf(err) != vpcport.PortGone {
		t.Fatal(err)
	}
	b.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(map[string]int{http.MethodGet: http.StatusInternalServerError, http.MethodPost: http.StatusBadRequest}[r.Method])
		_, _ = fmt.Fprintf(w, "you sent %s, correct horse and battery staple", r.Header.Get("X-Auth-Token"))
	})
	_, ofPort := b.provider.Get(t.Context(), vpcporttest.Absent)
	_, ofNetwork := b.provider.Network(t.Context(), "blue")
	_, ofToken := application.Get(t.Context(), vpcporttest.Absent)
	for what, tt := range map[string]struct {
		err    error
		secret []string
	}{
		"port":    {ofPort, []string{"gAAAAAB", "correct horse"}},
		"network": {ofNetwork, []string{"gAAAAAB", "correct horse"}},
		"token":   {ofToken, []string{"battery staple"}},
	} {
		if tt.err == nil || !strings.Contains(tt.err.Error(), "(concealed)") {
			t.Errorf("%s: %v", what, tt.err)
		}
		for _, s := range tt.secret {
			if strings.Contains(fmt.Sprintf("%v %+v", tt.err, tt.err), s) {
				t.Errorf("%s: %q is in %v", what, s, tt.err)
			}
		}
	}
}
