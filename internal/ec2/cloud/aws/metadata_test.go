package aws

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/test/harness/check"
)

const nic = "network/interfaces/macs/02:00:00:00:00:0a/"

// machine is the metadata of one instance.
func machine() map[string]string {
	return map[string]string{
		"instance-id": "i-1", "instance-type": "m5.large", "placement/region": "eu-west-1",
		"placement/availability-zone": "eu-west-1a", "mac": "02:00:00:00:00:0a", "local-ipv4": "10.0.0.10",
		nic + "vpc-id": "vpc-1", nic + "subnet-id": "subnet-1",
		nic + "vpc-ipv4-cidr-blocks": "10.0.0.0/16\n100.64.0.0/16", nic + "vpc-ipv6-cidr-blocks": "2001:db8::/56",
	}
}

// ofIPv6 is the machine in an IPv6-only subnet.
func ofIPv6(own string) map[string]string {
	m := machine()
	delete(m, "local-ipv4")
	m["ipv6"] = own
	return m
}

// metadataServer serves paths; each of the first failures requests gets status.
type metadataServer struct {
	mu       sync.Mutex
	paths    map[string]string
	v1       bool // tokens are not served
	failures int
	status   int    // 0: nobody answers
	token    string // "token" when empty; else a request without one is served too
	tokens   int
}

func (s *metadataServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failures > 0 {
		s.failures--
		w.WriteHeader(s.status)
		return
	}
	switch {
	case r.URL.Path == "/latest/api/token" && s.v1:
		w.WriteHeader(http.StatusNotFound)
		return
	case r.URL.Path == "/latest/api/token":
		s.tokens++
		w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "21600")
		_, _ = fmt.Fprint(w, cmp.Or(s.token, "token"))
		return
	case r.Header.Get("X-Aws-Ec2-Metadata-Token") == "" && !s.v1 && s.token == "":
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	v, ok := s.paths[strings.TrimPrefix(r.URL.Path, "/latest/meta-data/")]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	_, _ = fmt.Fprint(w, v)
}

// Do answers a request without a network.
func (s *metadataServer) Do(r *http.Request) (*http.Response, error) {
	if s.failures > 0 && s.status == 0 {
		s.failures--
		return nil, syscall.ECONNREFUSED
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	out := w.Result()
	out.Request = r
	return out, nil
}

func (s *metadataServer) options() Options {
	return Options{IMDSEndpoint: "http://imds.test", HTTPClient: s, Logger: slog.New(slog.DiscardHandler)}
}

func TestIdentity(t *testing.T) {
	want := cloud.Identity{
		InstanceID: "i-1", InstanceType: "m5.large", Region: "eu-west-1", Zone: "eu-west-1a", VPCID: "vpc-1", SubnetID: "subnet-1",
		PrimaryMAC: net.HardwareAddr{2, 0, 0, 0, 0, 10}, PrimaryIPv4: netip.MustParseAddr("10.0.0.10"),
		VPCCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("100.64.0.0/16"), netip.MustParsePrefix("2001:db8::/56")},
	}
	noIPv6 := want
	noIPv6.VPCCIDRs = want.VPCCIDRs[:2]
	v4 := machine()
	delete(v4, nic+"vpc-ipv6-cidr-blocks")
	alone := want
	alone.PrimaryIPv4 = netip.Addr{}
	for _, tt := range []struct {
		name   string
		server *metadataServer
		want   cloud.Identity
		tokens int
	}{
		{"version 2", &metadataServer{paths: machine()}, want, 1},
		{"version 1", &metadataServer{paths: machine(), v1: true}, want, 0},
		{"without IPv6", &metadataServer{paths: v4}, noIPv6, 1},
		{"of IPv6 alone", &metadataServer{paths: ofIPv6("2001:db8::10")}, alone, 1},
		{"of IPv6 alone, broken at first", &metadataServer{paths: ofIPv6("2001:db8::10"), failures: 10, status: 503}, alone, 1},
		{"coming up, broken at first", &metadataServer{paths: machine(), failures: 10, status: 503}, want, 1},
		{"coming up, nobody listens at first", &metadataServer{paths: machine(), failures: 10}, want, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			got, err := NewMetadata(tt.server.options()).Identity(t.Context())
			if d := gocmp.Diff(tt.want, got, sameValues); d != "" || err != nil {
				t.Errorf("%s: %v %s", tt.name, err, d)
			}
			check.Equal(t, tt.server.tokens, tt.tokens, "%s: tokens fetched", tt.name)
		})
	}
}

func TestIdentityErrors(t *testing.T) {
	without := func(path string) map[string]string { m := machine(); delete(m, path); return m }
	with := func(path, value string) map[string]string { m := maps.Clone(machine()); m[path] = value; return m }
	booting := ofIPv6("2001:db8::10")
	booting[nic+"subnet-ipv4-cidr-block"] = "10.0.0.0/24"
	for _, tt := range []struct {
		name  string
		s     *metadataServer
		path  string
		class cloud.Class
	}{
		{"missing path", &metadataServer{paths: without("instance-type")}, "instance-type", cloud.Transient},
		{"switched off", &metadataServer{failures: 1 << 20, status: 403}, "instance-id", cloud.Permission},
		{"not a MAC", &metadataServer{paths: with("mac", "x")}, "mac", cloud.Transient},
		{"not an address", &metadataServer{paths: with("local-ipv4", "::1")}, "local-ipv4", cloud.Transient},
		{"no address at all", &metadataServer{paths: without("local-ipv4")}, "local-ipv4", cloud.Transient},
		{"its IPv4 address is late", &metadataServer{paths: booting}, "local-ipv4", cloud.Transient},
		{"not an IPv6 address", &metadataServer{paths: ofIPv6("10.0.0.10")}, "ipv6", cloud.Transient},
		{"IPv6 of another VPC", &metadataServer{paths: ofIPv6("2001:db8:9::10")}, nic + "vpc-ipv6-cidr-blocks", cloud.Transient},
		{"a log-in page", &metadataServer{paths: with("instance-id", "<html> log in </html>")}, "instance-id", cloud.Transient},
		{"no blocks", &metadataServer{paths: with(nic+"vpc-ipv4-cidr-blocks", " ")}, nic + "vpc-ipv4-cidr-blocks", cloud.Transient},
		{"host bits", &metadataServer{paths: with(nic+"vpc-ipv4-cidr-blocks", "10.0.0.1/16")}, nic + "vpc-ipv4-cidr-blocks", cloud.Transient},
		{"blocks of another VPC", &metadataServer{paths: with(nic+"vpc-ipv4-cidr-blocks", "10.9.0.0/16")}, nic + "vpc-ipv4-cidr-blocks", cloud.Transient},
		{"all IPv4", &metadataServer{paths: with(nic+"vpc-ipv4-cidr-blocks", "0.0.0.0/0")}, nic + "vpc-ipv4-cidr-blocks", cloud.Transient},
		{"all IPv6", &metadataServer{paths: with(nic+"vpc-ipv6-cidr-blocks", "::/0")}, nic + "vpc-ipv6-cidr-blocks", cloud.Transient},
		{"endless", &metadataServer{paths: with("instance-id", strings.Repeat("i", 1<<20))}, "instance-id", cloud.Transient},
		{"endless, as is the token", &metadataServer{paths: with("instance-id", strings.Repeat("i", 1<<20)), token: strings.Repeat("t", 1<<20)}, "instance-id", cloud.Transient},
	} {
		synctest.Test(t, func(t *testing.T) {
			_, err := NewMetadata(tt.s.options()).Identity(t.Context())
			if err == nil || !strings.Contains(err.Error(), "instance metadata "+tt.path) || cloud.ClassOf(err) != tt.class {
				t.Errorf("%s: got %v (class %v), want class %v and the path %s", tt.name, err, cloud.ClassOf(err), tt.class, tt.path)
			}
			if strings.Contains(tt.name, "endless") && !strings.Contains(fmt.Sprint(err), "bytes") {
				t.Errorf("%s: got %v, want one that says how many bytes an answer may have", tt.name, err)
			}
		})
	}
}

// TestRegionFromMetadata: New gets the region from the metadata service if it is not configured.
func TestRegionFromMetadata(t *testing.T) {
	clearAWS(t)
	o := (&metadataServer{paths: machine()}).options()
	o.Credentials = static
	c := check.Must(New(t.Context(), o))(t)
	check.Equal(t, c.api.Options().Region, "eu-west-1", "region")
}
