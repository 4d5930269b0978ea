package alcor_test

import (
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
func TestClassesOfReplies(t *testing.T) {
	for _, tc := range []struct {
		status      int
		message     string
		after       int
		create, get vpcport.Class
	}{
		{400, "JSON parse error: Unexpected character", 0, vpcport.Invalid, vpcport.Invalid},
		{404, "Port not found", 0, vpcport.Transient, vpcport.PortGone},
		{404, "No message available", 0, vpcport.Transient, vpcport.Transient},
		{405, "Request method 'POST' not supported", 0, vpcport.Invalid, vpcport.Invalid},
		{409, "something is under way", 0, vpcport.Conflict, vpcport.Conflict},
		{412, "Network id is required", 0, vpcport.Invalid, vpcport.Invalid},
		{412, "Fixed ips invalid", 0, vpcport.Invalid, vpcport.Invalid},
		{412, "Ip address conflict with exist", 0, vpcport.AddressTaken, vpcport.AddressTaken},
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

// For Alcor's message of a failed allocation, the request decides whether an address is taken or the
// subnet is full.
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

func (b *bed) contract(prefix string) vpcporttest.Bed {
	return vpcporttest.Bed{
		Provider: b.provider, Network: b.network.ID, Name: b.network.Name, Subnet: b.web.ID, CIDR: b.web.CIDR, Gateway: b.web.Gateway,
		Free: netip.MustParseAddr("192.168.0.77"), Small: b.small.ID, Room: 5, Group: b.group, Host: "node-a", NoHost: "node-z", Absent: vpcporttest.Absent,
		Plug: vpcport.Plug{Kind: vpcport.Netns, Netns: prefix + b.network.ID},
	}
}

func TestContract(t *testing.T) {
	vpcporttest.Run(t, func(t *testing.T) vpcporttest.Bed { return newBed(t, alcorfake.Options{}).contract("vpc-ns") })
}

// A release with other names, spellings and filters works too, also beside invalid ports of other
// clients.
func TestContractOfAnotherRelease(t *testing.T) {
	vpcporttest.Run(t, func(t *testing.T) vpcporttest.Bed {
		b := newBed(t, alcorfake.Options{Lower: true, Networks: true, Unfiltered: true})
		b.cloud.AddPort(alcorfake.Port{Network: "x/y", MAC: "none", Device: "someone", Project: project})
		b.cloud.AddPort(alcorfake.Port{Network: b.network.ID, Owner: vpcport.Owner, Project: "another"})
		b.cloud.AddNetwork(alcorfake.Network{Name: "blue", Project: "another"})
		b.provider = b.open(t, func(s *alcor.Settings) { s.NetnsPrefix = "vpc-ns-" })
		return b.contract("vpc-ns-")
	})
}

// Alcor may choose the MAC addresses.
func TestContractWithAlcorsMACs(t *testing.T) {
	vpcporttest.Run(t, func(t *testing.T) vpcporttest.Bed {
		b := newBed(t, alcorfake.Options{})
		b.provider = b.open(t, func(s *alcor.Settings) { s.ProviderMAC = true })
		return b.contract("vpc-ns")
	})
}
