package neutron_test

import (
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/neutron"
	"github.com/berthnet/berth/internal/vpcport/vpcporttest"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
)

const tokens = "/v3/auth/tokens"

// atOnce makes n calls at once and returns their errors.
func atOnce(n int, call func(int) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = call(i) })
	}
	wg.Wait()
	return errs
}

// Many calls share a token, and the next one when it has expired. A request that was refused for the
// old token is repeated once.
func TestTokensAreShared(t *testing.T) {
	clock := start()
	b := withKeystone(t, neutronfake.Options{Clock: clock}, neutronfake.User{})
	create := func(i int) error {
		_, err := b.provider.Create(t.Context(), []vpcport.NewPort{b.newPort(fmt.Sprint("u-", clock.Now().Unix(), i))})
		return err
	}
	for round := 1; round <= 3; round++ {
		for i, err := range atOnce(8, create) {
			if err != nil {
				t.Errorf("round %d, call %d: %v", round, i, err)
			}
		}
		if got := b.cloud.HTTP.Count(http.MethodPost, tokens); got != round {
			t.Errorf("round %d: %d tokens asked for", round, got)
		}
		if got := len(b.cloud.Ports()); got != 8*round {
			t.Errorf("round %d: %d ports", round, got)
		}
		clock.Advance(time.Hour)
	}
}

// If Neutron refuses a new token, no further one is requested.
func TestNewTokenRefused(t *testing.T) {
	b := withKeystone(t, neutronfake.Options{}, neutronfake.User{TokensWithoutAccess: true})
	_, err := b.provider.Get(t.Context(), vpcporttest.Absent)
	e := vpcporttest.WantError(t, "Get", err, vpcport.Unauthorized, "")
	if e.Op != "Neutron GET ports" || e.Status != http.StatusUnauthorized {
		t.Errorf("got %+v", e)
	}
	if n, m := b.cloud.HTTP.Count(http.MethodPost, tokens), b.cloud.HTTP.Count(http.MethodGet, "/v2.0/ports/*"); n != 2 || m != 2 {
		t.Errorf("asked %d times for a token and %d times for the port, want 2 and 2", n, m)
	}
}

// The error for wrong credentials has Keystone's message, and calls succeed once the credentials are
// right.
func TestCredentialsRefused(t *testing.T) {
	b := withKeystone(t, neutronfake.Options{}, neutronfake.User{})
	password := func(to string) { b.cloud.Keystone.EditUsers(func(u *neutronfake.User) { u.Password = to }) }
	port := b.make(t)
	password("another")
	if _, err := b.provider.Get(t.Context(), port.ID); err != nil {
		t.Errorf("with the old token: %v", err)
	}
	for _, when := range []string{"the token is void", "and again"} {
		b.cloud.Keystone.RevokeTokens()
		_, err := b.provider.Get(t.Context(), port.ID)
		e := vpcporttest.WantError(t, when, err, vpcport.Unauthorized, "")
		if want := "Keystone POST auth/tokens: HTTP 401: The request you have made requires authentication."; e.Error() != want {
			t.Errorf("%s: %v\nwant %s", when, &e, want)
		}
		if strings.Contains(fmt.Sprintf("%v %#v", &e, e), "correct horse") {
			t.Error("the error has the password")
		}
	}
	password("correct horse")
	if _, err := b.provider.Get(t.Context(), port.ID); err != nil {
		t.Errorf("with the right password: %v", err)
	}
}

// Failures of Keystone have the same classes as those of Neutron.
func TestKeystoneFails(t *testing.T) {
	for _, tc := range []struct {
		fault neutronfake.Fault
		want  vpcport.Class
	}{
		{neutronfake.Fault{Status: 503, Message: "<html>no backend</html>"}, vpcport.Transient},
		{neutronfake.Fault{Status: 429, RetryAfter: 7}, vpcport.Throttled},
		{neutronfake.Fault{Status: 403}, vpcport.Forbidden},
		{neutronfake.Fault{Status: 404}, vpcport.Invalid},
		{neutronfake.Fault{Status: 302, Header: map[string]string{"Location": "http://elsewhere.invalid/"}}, vpcport.Invalid},
		{neutronfake.Fault{HangUp: true}, vpcport.Transient},
		{neutronfake.Fault{After: true, Falsify: func([]byte) []byte { return []byte(`{"token": {"catalog": []}}`) }}, vpcport.Invalid},
		{neutronfake.Fault{After: true, Falsify: func(b []byte) []byte { return b[:len(b)/2] }}, vpcport.Transient},
		{neutronfake.Fault{After: true, Falsify: func([]byte) []byte { return []byte(strings.Repeat(" ", 9<<20)) }}, vpcport.Bug},
	} {
		for _, when := range []string{"first", "later"} {
			b := withKeystone(t, neutronfake.Options{}, neutronfake.User{})
			if when == "later" && tc.fault.Status != 0 {
				b.make(t)
				b.cloud.Keystone.RevokeTokens()
			}
			tc.fault.Path = tokens
			b.cloud.HTTP.Inject(tc.fault)
			_, err := b.provider.Get(t.Context(), vpcporttest.Absent)
			if got := vpcport.ClassOf(err); got != tc.want {
				t.Errorf("%s, %+v: %v, want %v: %v", when, tc.fault, got, tc.want, err)
			}
			b.cloud.HTTP.ClearFaults()
			if _, err := b.provider.Get(t.Context(), vpcporttest.Absent); vpcport.ClassOf(err) != vpcport.PortGone {
				t.Errorf("after %+v: %v", tc.fault, err)
			}
		}
	}
}

func TestApplicationCredential(t *testing.T) {
	b := open(t, neutronfake.Options{}, func(s *neutron.Settings) {
		s.TLS.Insecure = true
		s.Credentials = &neutron.Credentials{Application: &neutron.Application{ID: "ac-1", Secret: "s"}}
	}, neutronfake.User{Name: "berth", Credential: "ac-1", Secret: "s"})
	b.make(t)
	b.cloud.Keystone.RevokeTokens()
	b.make(t, func(n *vpcport.NewPort) { n.MAC, n.Device = nil, vpcport.Device("blue", "u-2") })
}

// Neutron's URL is that of the region. URLs that would leak the token are refused.
func TestCatalog(t *testing.T) {
	for _, tc := range []struct {
		name, region, url, want string
		secure                  bool
	}{
		{name: "the only region"},
		{name: "that region", region: "RegionOne"},
		{name: "another region", region: "RegionTwo", want: "region: no region RegionTwo, Keystone's catalog has RegionOne"},
		{name: "no URL", url: "neutron", want: "must begin with http:// or https://"},
		{name: "no TLS", url: "http://neutron.invalid", secure: true, want: "the network service in Keystone's catalog is at http://neutron.invalid: tokens are not sent without TLS"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := withKeystone(t, neutronfake.Options{}, neutronfake.User{})
			b.cloud.Keystone.SetCatalog(tc.url)
			server := b.server
			if tc.secure {
				server = httptest.NewTLSServer(b.cloud)
				defer server.Close()
			}
			p := b.open(t, func(s *neutron.Settings) {
				s.Endpoint, s.Region = server.URL+"/v3", tc.region
				s.TLS.Insecure, s.TLS.CABundle = !tc.secure, bundle(server)
				s.Credentials = &neutron.Credentials{Password: &neutron.Password{User: "berth", Password: "correct horse", UserDomain: "Default", Project: "berth", ProjectDomain: "Default"}}
			})
			_, err := p.Get(t.Context(), vpcporttest.Absent)
			if tc.want == "" {
				vpcporttest.WantError(t, "Get", err, vpcport.PortGone, vpcporttest.Absent)
				return
			}
			e := vpcporttest.WantError(t, "Get", err, vpcport.Invalid, "")
			if !strings.Contains(e.Error(), tc.want) {
				t.Errorf("got %v, want %s", &e, tc.want)
			}
		})
	}
}

// Keystone and Neutron may be below paths, as DevStack has them, and their URLs may have
// versions or not.
func TestPaths(t *testing.T) {
	b := withKeystone(t, neutronfake.Options{}, neutronfake.User{})
	mux := http.NewServeMux()
	mux.Handle("/identity/", http.StripPrefix("/identity", b.cloud))
	mux.Handle("/networking/", http.StripPrefix("/networking", b.cloud))
	server := httptest.NewServer(mux)
	defer server.Close()
	for _, tc := range []struct{ keystone, neutron string }{{"/identity", "/networking"}, {"/identity/v3/", "/networking/v2.0/"}, {"/identity/", "/networking/v2.0"}} {
		b.cloud.Keystone.SetCatalog(server.URL + tc.neutron)
		p := b.open(t, func(s *neutron.Settings) {
			s.Endpoint, s.TLS.Insecure = server.URL+tc.keystone, true
			s.Credentials = &neutron.Credentials{Password: &neutron.Password{User: "berth", Password: "correct horse", UserDomain: "Default", Project: "berth", ProjectDomain: "Default"}}
		})
		if n, err := p.Network(t.Context(), "blue"); err != nil || n.ID != b.network.ID {
			t.Errorf("%s, %s: %+v, %v", tc.keystone, tc.neutron, n, err)
		}
	}
}

// bundle is the certificate of a server in PEM; empty without one.
func bundle(server *httptest.Server) string {
	if server.Certificate() == nil {
		return ""
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
}

// An endpoint is verified by its certificate and name.
func TestTLS(t *testing.T) {
	b := newBed(t, neutronfake.Options{})
	server := httptest.NewUnstartedServer(b.cloud)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	server.StartTLS()
	defer server.Close()
	for _, tc := range []struct {
		name string
		tls  neutron.TLS
		want vpcport.Class
	}{
		{"unknown issuer", neutron.TLS{}, vpcport.Transient},
		{"its issuer", neutron.TLS{CABundle: bundle(server)}, vpcport.PortGone},
		{"its issuer and another of its names", neutron.TLS{CABundle: bundle(server), ServerName: "example.com"}, vpcport.PortGone},
		{"another name", neutron.TLS{CABundle: bundle(server), ServerName: "neutron.example"}, vpcport.Transient},
		{"any", neutron.TLS{Insecure: true}, vpcport.PortGone},
	} {
		p := b.open(t, func(s *neutron.Settings) { s.Endpoint, s.Project, s.TLS = server.URL, project, tc.tls })
		_, err := p.Get(t.Context(), vpcporttest.Absent)
		if got := vpcport.ClassOf(err); got != tc.want {
			t.Errorf("%s: %v, want %v: %v", tc.name, got, tc.want, err)
		}
		if tc.want == vpcport.Transient && !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: %v does not tell what is wrong", tc.name, err)
		}
	}
}
