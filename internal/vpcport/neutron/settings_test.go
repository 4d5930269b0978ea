package neutron_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/vpcport/neutron"
)

func TestSettings(t *testing.T) {
	password := func() *neutron.Password {
		return &neutron.Password{User: "u", Password: "p", Project: "j"}
	}
	for _, tc := range []struct {
		name string
		edit func(*neutron.Settings)
		want string // part of the error; empty: none
	}{
		{"Keystone", func(*neutron.Settings) {}, ""},
		{"Neutron without Keystone", func(s *neutron.Settings) { s.Credentials, s.Project, s.Endpoint = nil, "p", "http://n:9696/v2.0/" }, ""},
		{"no project", func(s *neutron.Settings) { s.Credentials = nil }, "project: must be set"},
		{"invalid URL", func(s *neutron.Settings) { s.Endpoint = "::" }, "endpoint: "},
		{"unsupported scheme", func(s *neutron.Settings) { s.Endpoint = "ftp://n" }, "must begin with http:// or https://"},
		{"user in the URL", func(s *neutron.Settings) { s.Endpoint = "https://me:secret@n" }, "neither user"},
		{"query in the URL", func(s *neutron.Settings) { s.Endpoint = "https://n?a=b" }, "neither user, query nor fragment"},
		{"credentials without TLS", func(s *neutron.Settings) { s.Endpoint = "http://n" }, "must begin with https://"},
		{"credentials without TLS, allowed", func(s *neutron.Settings) { s.Endpoint, s.TLS.Insecure = "http://n", true }, ""},
		{"empty credentials", func(s *neutron.Settings) { s.Credentials = &neutron.Credentials{} }, "credentials: must be"},
		{"both kinds of credentials", func(s *neutron.Settings) { s.Credentials.Application = &neutron.Application{ID: "a", Secret: "b"} }, "credentials: must be"},
		{"no username", func(s *neutron.Settings) { s.Credentials.Password.User = "" }, "credentials: username must be set"},
		{"no secret", func(s *neutron.Settings) {
			s.Credentials = &neutron.Credentials{Application: &neutron.Application{ID: "a"}}
		}, "credentials: secret must be set"},
		{"no certificate", func(s *neutron.Settings) { s.TLS.CABundle = "nothing" }, "tls.caBundle: has no certificate"},
	} {
		s := neutron.Settings{Endpoint: "https://keystone.example:5000/v3", Credentials: &neutron.Credentials{Password: password()}}
		tc.edit(&s)
		_, err := neutron.Open(s)
		switch {
		case tc.want == "" && err != nil, tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s: Open() = %v, want an error containing %q", tc.name, err, tc.want)
		case err != nil && strings.Contains(err.Error(), "secret@"):
			t.Errorf("%s: the error contains the secret: %v", tc.name, err)
		}
	}
}

// Printed settings contain no secrets.
func TestSecretsAreNotPrinted(t *testing.T) {
	c := neutron.Credentials{Password: &neutron.Password{Password: "correct horse"}, Application: &neutron.Application{Secret: "correct horse"}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		for _, v := range []any{c, *c.Password, c.Password, *c.Application, c.Application} {
			if text := fmt.Sprintf(verb, v); strings.Contains(text, "horse") {
				t.Errorf("%s prints a secret: %s", verb, text)
			}
		}
	}
}
