package neutron_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/neutron"
)

var address = netip.MustParseAddr("192.168.0.5")

// keystone is one that gives tokens, and a Neutron that takes the newest only.
type keystone struct {
	*httptest.Server
	asked  atomic.Int32
	refuse atomic.Bool
	body   atomic.Value // of the last request for a token
}

func newKeystone(t *testing.T) *keystone {
	t.Helper()
	k := &keystone{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v3/auth/tokens", func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		_ = json.NewDecoder(r.Body).Decode(&body)
		k.body.Store(body)
		if k.refuse.Load() {
			http.Error(w, `{"error": {"code": 401, "title": "Unauthorized", "message": "The request you have made requires authentication."}}`, http.StatusUnauthorized)
			return
		}
		w.Header().Set("X-Subject-Token", fmt.Sprint("token-", k.asked.Add(1)))
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"token": {"expires_at": "2099-01-01T00:00:00.000000Z", "catalog": [{"type": "network", "name": "neutron",
			"endpoints": [{"interface": "public", "region": "RegionOne", "region_id": "RegionOne", "url": %q}]}]}}`, k.URL)
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"versions": [{"id": "v2.0", "status": "CURRENT", "links": [{"rel": "self", "href": "%s/v2.0/"}]}]}`, k.URL)
	})
	mux.HandleFunc("GET /v2.0/ports/{id}", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Auth-Token") != fmt.Sprint("token-", k.asked.Load()) {
			http.Error(w, `{"error": {"code": 401}}`, http.StatusUnauthorized)
			return
		}
		http.Error(w, said("PortNotFound", "Port could not be found."), http.StatusNotFound)
	})
	k.Server = httptest.NewServer(mux)
	t.Cleanup(k.Close)
	return k
}

func (k *keystone) client(t *testing.T, a neutron.Auth) *neutron.Client {
	t.Helper()
	c, err := neutron.New(neutron.Options{Endpoint: k.URL + "/v3", Region: "RegionOne", Auth: &a})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Many calls at once ask for one token; an expired one is renewed; refused credentials
// are told as such, and asked about again by the next call.
func TestKeystone(t *testing.T) {
	k := newKeystone(t)
	c := k.client(t, neutron.Auth{Username: "berth", Password: "secret", Project: "pods"})
	k.refuse.Store(true)
	if _, err := c.Get(t.Context(), absentID); vpcport.ClassOf(err) != vpcport.Unauthorized {
		t.Errorf("with a password that is wrong: %v", err)
	}
	k.refuse.Store(false)
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			if _, err := c.Get(t.Context(), absentID); vpcport.ClassOf(err) != vpcport.PortGone {
				t.Errorf("got %v", err)
			}
		})
	}
	calls.Wait()
	if n := k.asked.Load(); n != 1 {
		t.Errorf("asked for %d tokens, want one", n)
	}
	k.asked.Add(1) // the token expired
	if _, err := c.Get(t.Context(), absentID); vpcport.ClassOf(err) != vpcport.PortGone {
		t.Errorf("with a token that expired: %v", err)
	}
	k.asked.Add(1)
	k.refuse.Store(true)
	if _, err := c.Get(t.Context(), absentID); vpcport.ClassOf(err) != vpcport.Unauthorized {
		t.Errorf("with a token that expired, and no other: %v", err)
	}
}

// A cloud without a Neutron in the region is told from one that does not answer.
func TestNoNeutron(t *testing.T) {
	k := newKeystone(t)
	c, err := neutron.New(neutron.Options{Endpoint: k.URL + "/v3", Region: "elsewhere", Auth: &neutron.Auth{Username: "berth", Password: "secret", Project: "pods"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(t.Context(), absentID); vpcport.ClassOf(err) != vpcport.NetworkGone || !strings.Contains(err.Error(), `the catalog has no Neutron of region "elsewhere"`) {
		t.Errorf("got %v", err)
	}
	k.Close()
	if _, err := c.Get(t.Context(), absentID); vpcport.ClassOf(err) != vpcport.Transient {
		t.Errorf("with no Keystone: %v", err)
	}
}

func TestApplicationCredential(t *testing.T) {
	k := newKeystone(t)
	c := k.client(t, neutron.Auth{ApplicationCredentialID: "ac-1", ApplicationCredentialSecret: "secret"})
	if _, err := c.Get(t.Context(), absentID); vpcport.ClassOf(err) != vpcport.PortGone {
		t.Errorf("got %v", err)
	}
	sent, _ := json.Marshal(k.body.Load())
	if want := `{"auth":{"identity":{"application_credential":{"id":"ac-1","secret":"secret"},"methods":["application_credential"]}}}`; string(sent) != want {
		t.Errorf("Keystone was shown %s\nwant %s", sent, want)
	}
}
