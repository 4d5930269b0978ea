package kube

import (
	"errors"
	"net/netip"
	"testing"

	"k8s.io/client-go/rest"
)

// TestRemote reads what another process has written down of its control plane.
func TestRemote(t *testing.T) {
	own := &ControlPlane{
		address: netip.MustParseAddrPort("127.0.0.1:6443"),
		admin: &rest.Config{
			Host: "https://127.0.0.1:6443", BearerToken: "administrator",
			TLSClientConfig: rest.TLSClientConfig{CAData: []byte("authority")},
		},
	}
	dir := t.TempDir()
	if _, err := own.Export(dir, netip.MustParseAddr("198.51.100.2")); err != nil {
		t.Fatal(err)
	}
	c, err := Remote(dir)
	if err != nil {
		t.Fatal(err)
	}
	for token, cfg := range map[string]*rest.Config{"administrator": c.Config(), "user": c.ConfigWithToken("user")} {
		if cfg.Host != "https://198.51.100.2:6443" || cfg.ServerName != "127.0.0.1" || string(cfg.CAData) != "authority" || cfg.BearerToken != token {
			t.Errorf("%s has server %s (%s), authority %q, token %q", token, cfg.Host, cfg.ServerName, cfg.CAData, cfg.BearerToken)
		}
	}
	if string(c.CA()) != "authority" {
		t.Errorf("the authority is %q", c.CA())
	}
	_, err = c.ConfigFor("user")
	for what, err := range map[string]error{"a certificate": err, "an end": c.KillAPIServer(), "a start": c.StartAPIServer(t.Context())} {
		if !errors.Is(err, errRemote) {
			t.Errorf("%s: got %v, want %v", what, err, errRemote)
		}
	}
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := Remote(t.TempDir()); err == nil {
		t.Error("a folder without a control plane is no error")
	}
}
