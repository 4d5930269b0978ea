package alcor_test

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/alcor"
	"github.com/berthnet/berth/internal/vpcport/vpcporttest"
	"github.com/berthnet/berth/lab/cloud/alcorfake"
)

// of is the port manager's message for the refusal of another manager.
func of(status int, message, path string) string {
	return fmt.Sprintf(`org.springframework.web.client.HttpClientErrorException$X: %d : [{"timestamp":"2026-11-23T08:00:00.000+0000","status":%d,"error":"X","message":%q,"path":%q}]`, status, status, message, path)
}

// Every unsuccessful reply has a class, whoever sends it.
func TestClassesOfAnswers(t *testing.T) {
	for _, tc := range []struct {
		status      int
		message     string
		after       int
		create, get vpcport.Class
	}{
		{400, "JSON parse error: Unexpected character", 0, vpcport.Invalid, vpcport.Invalid},
		{401, "", 0, vpcport.Unauthorized, vpcport.Unauthorized},
		{403, "create_port is disallowed by policy.", 0, vpcport.Forbidden, vpcport.Forbidden},
		{404, "Port not found", 0, vpcport.Transient, vpcport.PortGone},
		{404, "No message available", 0, vpcport.Transient, vpcport.Transient},
		{404, "Not Found", 0, vpcport.Transient, vpcport.Transient},
		{405, "Request method 'POST' not supported", 0, vpcport.Invalid, vpcport.Invalid},
		{408, "", 0, vpcport.Transient, vpcport.Transient},
		{409, "something is under way", 0, vpcport.Conflict, vpcport.Conflict},
		{412, "Network id is required", 0, vpcport.Invalid, vpcport.Invalid},
		{412, "Fixed ips invalid", 0, vpcport.Invalid, vpcport.Invalid},
		{412, "Ip address conflict with exist", 0, vpcport.AddressTaken, vpcport.AddressTaken},
		{413, "", 0, vpcport.TooLarge, vpcport.TooLarge},
		{429, "", 3, vpcport.Throttled, vpcport.Throttled},
		{500, "No message available", 0, vpcport.Transient, vpcport.Transient},
		{500, "java.lang.NullPointerException", 0, vpcport.Transient, vpcport.Transient},
		{500, "Get VpcEntity exception", 0, vpcport.NetworkGone, vpcport.NetworkGone},
		{500, "Get SubnetEntity exception", 0, vpcport.ReferenceGone, vpcport.ReferenceGone},
		{500, "Get SecurityGroupEntity exception", 0, vpcport.ReferenceGone, vpcport.ReferenceGone},
		{500, "Get node information exception", 0, vpcport.Conflict, vpcport.Conflict},
		{500, "Allocate ip address error", 0, vpcport.SubnetFull, vpcport.SubnetFull},
		{500, "Allocate mac address error", 0, vpcport.Transient, vpcport.Transient},
		{500, of(412, "Ip address conflict with exist", "/ips"), 0, vpcport.AddressTaken, vpcport.AddressTaken},
		{500, of(412, "Ip address number not enough in the specified Ipv4AddrRange", "/ips"), 0, vpcport.SubnetFull, vpcport.SubnetFull},
		{500, of(400, "Ip address invalid", "/ips"), 0, vpcport.Invalid, vpcport.Invalid},
		{500, of(400, "This mac address is not unique!!", "/macs"), 0, vpcport.MACTaken, vpcport.MACTaken},
		{502, "Get VpcEntity exception", 0, vpcport.Transient, vpcport.Transient},
		{503, "", 0, vpcport.Transient, vpcport.Transient},
		{503, "", 30, vpcport.Throttled, vpcport.Throttled},
		{504, "", 0, vpcport.Transient, vpcport.Transient},
		{302, "", 0, vpcport.Invalid, vpcport.Invalid},
	} {
		b := newBed(t, alcorfake.Options{})
		b.cloud.HTTP.Inject(alcorfake.Fault{Status: tc.status, Message: tc.message, RetryAfter: tc.after})
		_, cerr := b.provider.Create(t.Context(), []vpcport.NewPort{{NetworkID: b.network.ID}})
		_, gerr := b.provider.Get(t.Context(), vpcporttest.Absent)
		if vpcport.ClassOf(cerr) != tc.create || vpcport.ClassOf(gerr) != tc.get {
			t.Errorf("%d %s: Create %v, want %v; Get %v, want %v", tc.status, tc.message, vpcport.ClassOf(cerr), tc.create, vpcport.ClassOf(gerr), tc.get)
		}
		e, ok := gerr.(*vpcport.Error) //nolint:errorlint // a provider's errors are of this type
		if !ok || e.Status != tc.status || e.RetryAfter != time.Duration(tc.after)*time.Second || e.Message == "" {
			t.Errorf("%d %s: got %+v", tc.status, tc.message, e)
		}
		if n := b.cloud.HTTP.Count(http.MethodPost, "/project/*/ports"); n != 1 {
			t.Errorf("%d %s: asked %d times", tc.status, tc.message, n)
		}
	}
}

// A 404 of a proxy does not mean that Alcor has deleted a port.
func TestDeleteBelievesAlcorOnly(t *testing.T) {
	b := newBed(t, alcorfake.Options{})
	p := b.make(t)
	for _, body := range []string{"<html>no backend</html>", `{"status":404,"error":"Not Found","message":"No message available","path":"/"}`, ""} {
		b.cloud.HTTP.Inject(alcorfake.Fault{Method: http.MethodDelete, Status: 404, Message: body, Plain: true, Times: 1})
		err := b.provider.Delete(t.Context(), p.ID)
		e := vpcporttest.WantError(t, "by a proxy", err, vpcport.Transient, "")
		if strings.Contains(e.Message, "<") {
			t.Errorf("a page for people is told: %v", err)
		}
	}
	if err := b.provider.Delete(t.Context(), p.ID); err != nil || len(b.cloud.Ports()) != 0 {
		t.Errorf("by Alcor: %v, ports %v", err, b.cloud.Ports())
	}
}

// An error has the name that caused it if the request has only one of its kind.
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
		{"group, or subnet", func(_ *bed, n *vpcport.NewPort) { n.Groups = []string{vpcporttest.Absent} }, vpcport.ReferenceGone, func(*bed) string { return "" }},
		{"address", func(_ *bed, n *vpcport.NewPort) { n.Addresses[0].IP = taken }, vpcport.AddressTaken, func(*bed) string { return taken.String() }},
		{"address outside", func(_ *bed, n *vpcport.NewPort) { n.Addresses[0].IP = netip.MustParseAddr("10.0.0.1") }, vpcport.Invalid, func(*bed) string { return "" }},
		{"MAC address", func(_ *bed, n *vpcport.NewPort) { n.MAC = vpcport.DerivedMAC("blue", "u-1", 0) }, vpcport.MACTaken, func(*bed) string { return vpcport.DerivedMAC("blue", "u-1", 0).String() }},
		{"full subnet", func(b *bed, n *vpcport.NewPort) { n.Addresses[0].SubnetID = b.small.ID }, vpcport.SubnetFull, func(b *bed) string { return b.small.ID }},
	} {
		b := newBed(t, alcorfake.Options{})
		b.make(t, func(n *vpcport.NewPort) { n.Addresses[0].IP = taken })
		for ip := b.small.Gateway.Next(); b.small.CIDR.Contains(ip.Next()); ip = ip.Next() {
			b.cloud.AddPort(alcorfake.Port{Network: b.network.ID, FixedIPs: []alcorfake.FixedIP{{Subnet: b.small.ID, IP: ip}}})
		}
		n := b.newPort("u-2")
		tc.edit(b, &n)
		before := len(b.cloud.Ports())
		_, err := b.provider.Create(t.Context(), []vpcport.NewPort{n})
		vpcporttest.WantError(t, tc.name, err, tc.class, tc.about(b))
		if len(b.cloud.Ports()) != before {
			t.Errorf("%s: something is left of it", tc.name)
		}
	}
}

// Alcor may have one message for a taken address and for a full subnet. The request decides which it
// is.
func TestNoAddress(t *testing.T) {
	for ip, class := range map[string]vpcport.Class{"": vpcport.SubnetFull, "192.168.0.9": vpcport.AddressTaken} {
		b := newBed(t, alcorfake.Options{})
		b.cloud.HTTP.Inject(alcorfake.Fault{Method: http.MethodPost, Status: 500, Message: "Allocate ip address error"})
		n := b.newPort("u-1")
		about := b.web.ID
		if ip != "" {
			n.Addresses[0].IP, about = netip.MustParseAddr(ip), ip
		}
		_, err := b.provider.Create(t.Context(), []vpcport.NewPort{n})
		if e := vpcporttest.WantError(t, ip, err, class, about); e.Message != "Allocate ip address error" {
			t.Errorf("Alcor's words are %q", e.Message)
		}
	}
}

// A call ends with its context.
func TestContextEnds(t *testing.T) {
	b := newBed(t, alcorfake.Options{Clock: start()})
	b.cloud.HTTP.Inject(alcorfake.Fault{Delay: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() { _, err := b.provider.Get(ctx, vpcporttest.Absent); failed <- err }()
	cancel()
	if err := <-failed; vpcport.ClassOf(err) != vpcport.Transient {
		t.Errorf("got %v", err)
	}
}

// A redirect is not followed.
func TestRedirectsAreNotFollowed(t *testing.T) {
	b := newBed(t, alcorfake.Options{})
	other := newBed(t, alcorfake.Options{})
	b.cloud.HTTP.Inject(alcorfake.Fault{Status: 307, Header: map[string]string{"Location": other.server.URL}})
	_, err := b.provider.Get(t.Context(), vpcporttest.Absent)
	if e := vpcporttest.WantError(t, "Get", err, vpcport.Invalid, ""); !strings.Contains(e.Message, other.server.URL) || len(other.cloud.HTTP.Calls()) != 0 {
		t.Errorf("got %v, calls %v", err, other.cloud.HTTP.Calls())
	}
}

// Errors name the invalid field of the settings.
func TestSettings(t *testing.T) {
	good := alcor.Settings{Endpoint: "http://alcor.example:9009/", Project: project}
	if p, err := alcor.Open(good); err != nil || p.Endpoint() != good.Endpoint {
		t.Fatalf("%v, %v", p, err)
	}
	for field, edit := range map[string]func(*alcor.Settings){
		"endpoint:":          func(s *alcor.Settings) { s.Endpoint = "alcor.example" },
		"endpoint: ":         func(s *alcor.Settings) { s.Endpoint = "http://user:word@alcor.example" },
		"project:":           func(s *alcor.Settings) { s.Project = "" },
		"project: ":          func(s *alcor.Settings) { s.Project = "../admin" },
		"alcor.netnsPrefix:": func(s *alcor.Settings) { s.NetnsPrefix = "../x" },
		"tls.caBundle:":      func(s *alcor.Settings) { s.TLS.CABundle = "none" },
	} {
		s := good
		edit(&s)
		if _, err := alcor.Open(s); err == nil || !strings.HasPrefix(err.Error(), field) || strings.Contains(err.Error(), "word") {
			t.Errorf("%s got %v", field, err)
		}
	}
}
