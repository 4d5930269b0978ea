package neutron_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/neutron"
	"github.com/berthnet/berth/internal/vpcport/vpcporttest"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
)

// Every unsuccessful reply has a class, whoever sends it.
func TestClassesOfReplies(t *testing.T) {
	for _, tc := range []struct {
		status        int
		kind, message string
		after         int
		create, get   vpcport.Class
	}{
		{400, "InvalidInput", "Invalid input for operation: no.", 0, vpcport.Invalid, vpcport.Invalid},
		{403, "PolicyNotAuthorized", "(rule:create_port) is disallowed by policy", 0, vpcport.Forbidden, vpcport.Forbidden},
		{404, "PortNotFound", "Port x could not be found.", 0, vpcport.Transient, vpcport.PortGone},
		{404, "HTTPNotFound", "The resource could not be found.", 0, vpcport.Transient, vpcport.PortGone},
		{409, "IpAddressGenerationFailureAllSubnets", "No more IP addresses available.", 0, vpcport.SubnetFull, vpcport.SubnetFull},
		{409, "IpAddressInUse", "Unable to complete operation. The IP address is in use.", 0, vpcport.AddressTaken, vpcport.AddressTaken},
		{409, "IpAddressGenerationFailureNoMatchingSubnet", "No valid service subnet.", 0, vpcport.Invalid, vpcport.Invalid},
		{409, "PortInUse", "Unable to complete operation.", 0, vpcport.Conflict, vpcport.Conflict},
		{412, "", "<html>Precondition Failed</html>", 0, vpcport.Stale, vpcport.Stale},
		{500, "HTTPInternalServerError", "Request Failed: internal server error while processing your request.", 0, vpcport.Transient, vpcport.Transient},
		{500, "PortNotFound", "what is in a 500 is not believed", 0, vpcport.Transient, vpcport.Transient},
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
