package aws

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/internal/cloud"
)

const nic = "network/interfaces/macs/02:00:00:00:00:0a/"

// machine is what the metadata service of one instance knows.
func machine() map[string]string {
	return map[string]string{
		"instance-id": "i-1", "instance-type": "m5.large", "placement/region": "eu-west-1",
		"placement/availability-zone": "eu-west-1a", "mac": "02:00:00:00:00:0a", "local-ipv4": "10.0.0.10",
		nic + "vpc-id": "vpc-1", nic + "subnet-id": "subnet-1",
		nic + "vpc-ipv4-cidr-blocks": "10.0.0.0/16\n100.64.0.0/16", nic + "vpc-ipv6-cidr-blocks": "2001:db8::/56",
		nic + "ipv6s": "2001:db8::a\n2001:db8::b",
	}
}

// metadataServer serves paths; each of the first failures requests gets status.
type metadataServer struct {
	mu       sync.Mutex
	paths    map[string]string
	v1       bool // tokens are not served
	failures int
	status   int
	tokens   int
	bare     int // requests without a token
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
		_, _ = fmt.Fprint(w, "token")
		return
	case r.Header.Get("X-Aws-Ec2-Metadata-Token") == "":
		s.bare++
		if !s.v1 {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
	}
	v, ok := s.paths[strings.TrimPrefix(r.URL.Path, "/latest/meta-data/")]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	_, _ = fmt.Fprint(w, v)
}

func metadata(t *testing.T, s *metadataServer) *Metadata {
	t.Helper()
	clearAWS(t)
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	return NewMetadata(Options{IMDSEndpoint: h.URL, HTTPClient: calm, Logger: slog.New(slog.DiscardHandler), Clock: newPatient()})
}

// patiently is a context whose deadline keeps the SDK from its own of five seconds
// an answer.
func patiently(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// patient is a clock on which only short waits end: a time-out of the whole
// reading never comes.
type patient struct{ *hasty }

func newPatient() patient { return patient{newHasty()} }

func (p patient) After(d time.Duration) <-chan time.Time {
	if d > metadataMaxPause {
		return nil
	}
	return p.hasty.After(d)
}

func TestIdentity(t *testing.T) {
	want := cloud.Identity{
		InstanceID: "i-1", InstanceType: "m5.large", Region: "eu-west-1", Zone: "eu-west-1a", VPCID: "vpc-1", SubnetID: "subnet-1",
		PrimaryMAC: net.HardwareAddr{2, 0, 0, 0, 0, 10}, PrimaryIPv4: netip.MustParseAddr("10.0.0.10"), PrimaryIPv6: netip.MustParseAddr("2001:db8::a"),
		VPCCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("100.64.0.0/16"), netip.MustParsePrefix("2001:db8::/56")},
	}
	noIPv6 := want
	noIPv6.PrimaryIPv6, noIPv6.VPCCIDRs = netip.Addr{}, want.VPCCIDRs[:2]
	v4 := machine()
	delete(v4, nic+"vpc-ipv6-cidr-blocks")
	delete(v4, nic+"ipv6s")
	for _, tt := range []struct {
		name   string
		server *metadataServer
		want   cloud.Identity
		tokens int
	}{
		{"version 2", &metadataServer{paths: machine()}, want, 1},
		{"version 1", &metadataServer{paths: machine(), v1: true}, want, 0},
		{"without IPv6", &metadataServer{paths: v4}, noIPv6, 1},
		{"coming up, broken at first", &metadataServer{paths: machine(), failures: 20, status: 503}, want, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := metadata(t, tt.server).Identity(patiently(t))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got, sameValues); d != "" {
				t.Error(d)
			}
			if tt.server.tokens != tt.tokens {
				t.Errorf("%d tokens fetched, want %d", tt.server.tokens, tt.tokens)
			}
		})
	}
}

// TestIdentityComingUp: nothing listens at first.
func TestIdentityComingUp(t *testing.T) {
	clearAWS(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	clk := &riser{hasty: newHasty(), up: func() {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Error(err)
			return
		}
		s := &http.Server{Handler: &metadataServer{paths: machine()}}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { _ = s.Close() })
	}}
	got, err := NewMetadata(Options{IMDSEndpoint: "http://" + addr, HTTPClient: calm, Logger: slog.New(slog.DiscardHandler), Clock: clk}).Identity(patiently(t))
	if err != nil || got.InstanceID != "i-1" {
		t.Errorf("got %+v, %v", got, err)
	}
}

// riser lets something happen at the second pause between attempts.
type riser struct {
	*hasty
	pauses int
	up     func()
}

func (r *riser) After(d time.Duration) <-chan time.Time {
	if d > metadataMaxPause {
		return nil
	}
	if r.pauses++; r.pauses == 2 {
		r.up()
	}
	return r.hasty.After(d)
}

func TestIdentityErrors(t *testing.T) {
	without := func(path string) map[string]string { m := machine(); delete(m, path); return m }
	with := func(path, value string) map[string]string { m := maps.Clone(machine()); m[path] = value; return m }
	for _, tt := range []struct {
		name  string
		s     *metadataServer
		clock interface {
			Now() time.Time
			Boot() time.Duration
			After(time.Duration) <-chan time.Time
		}
		path  string
		class cloud.Class
	}{
		// On the hasty clock the time-out of the whole reading is over at once.
		{"missing path", &metadataServer{paths: without("instance-type")}, nil, "instance-type", cloud.Transient},
		{"switched off", &metadataServer{failures: 1 << 20, status: 403}, newPatient(), "instance-id", cloud.Permission},
		{"not a MAC", &metadataServer{paths: with("mac", "x")}, newPatient(), "mac", cloud.Transient},
		{"not an address", &metadataServer{paths: with("local-ipv4", "::1")}, newPatient(), "local-ipv4", cloud.Transient},
		{"a log-in page", &metadataServer{paths: with("instance-id", "<html> log in </html>")}, newPatient(), "instance-id", cloud.Transient},
		{"no blocks", &metadataServer{paths: with(nic+"vpc-ipv4-cidr-blocks", " ")}, newPatient(), nic + "vpc-ipv4-cidr-blocks", cloud.Transient},
		{"host bits", &metadataServer{paths: with(nic+"vpc-ipv4-cidr-blocks", "10.0.0.1/16")}, newPatient(), nic + "vpc-ipv4-cidr-blocks", cloud.Transient},
		{"blocks of another VPC", &metadataServer{paths: with(nic+"vpc-ipv4-cidr-blocks", "10.9.0.0/16")}, newPatient(), nic + "vpc-ipv4-cidr-blocks", cloud.Transient},
		{"all IPv4", &metadataServer{paths: with(nic+"vpc-ipv4-cidr-blocks", "0.0.0.0/0")}, newPatient(), nic + "vpc-ipv4-cidr-blocks", cloud.Transient},
		{"all IPv6", &metadataServer{paths: with(nic+"vpc-ipv6-cidr-blocks", "::/0")}, newPatient(), nic + "vpc-ipv6-cidr-blocks", cloud.Transient},
		{"not IPv6", &metadataServer{paths: with(nic+"ipv6s", "10.0.0.1")}, newPatient(), nic + "ipv6s", cloud.Transient},
		{"endless", &metadataServer{paths: with("instance-id", strings.Repeat("i", 1<<20))}, nil, "instance-id", cloud.Transient},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := metadata(t, tt.s)
			if m.clock = tt.clock; tt.clock == nil {
				m.clock = &deadliner{hasty: newHasty()}
			}
			_, err := m.Identity(patiently(t))
			if err == nil || !strings.Contains(err.Error(), "instance metadata "+tt.path) || cloud.ClassOf(err) != tt.class {
				t.Errorf("got %v (class %v), want class %v and the path %s", err, cloud.ClassOf(err), tt.class, tt.path)
			}
		})
	}
}

// deadliner ends the whole reading at its third pause.
type deadliner struct {
	*hasty
	mu     sync.Mutex
	end    chan time.Time
	pauses int
}

func (d *deadliner) After(wait time.Duration) <-chan time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	if wait > metadataMaxPause {
		d.end = make(chan time.Time, 1)
		return d.end
	}
	if d.pauses++; d.pauses < 3 {
		return d.hasty.After(wait)
	}
	close(d.end)
	return nil
}

// TestRegionFromMetadata: New finds the region where nothing else tells it.
func TestRegionFromMetadata(t *testing.T) {
	clearAWS(t)
	h := httptest.NewServer(&metadataServer{paths: machine()})
	t.Cleanup(h.Close)
	c, err := New(t.Context(), Options{IMDSEndpoint: h.URL, Credentials: static})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.api.Options().Region; got != "eu-west-1" {
		t.Errorf("region %q, want eu-west-1", got)
	}
}
