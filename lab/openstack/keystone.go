package openstack

import (
	"context"
	"crypto/rand"
	_ "embed" // the program in Python
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"
)

//go:embed keystone.py
var keystoneScript []byte

const keystonePort = 5000

// Region is that of Neutron in Keystone's catalog.
const Region = "lab"

// keystone is what is known of a running one.
type keystone struct {
	password string // of the user admin
	ready    func(ctx context.Context) error

	mu      sync.Mutex // guards all below; held while there is no token yet, so that one is asked for
	token   string     // of the user admin, in the project admin
	since   time.Time  // that token was asked for
	project string     // the ID of the project that things are made in
}

func (c *Cloud) keystoneURL() string {
	return "http://" + netip.AddrPortFrom(services.Addr(), keystonePort).String() + "/v3"
}

// secret is a new password.
func secret() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}

// startKeystone starts Keystone with keys of its own and a user admin.
func (c *Cloud) startKeystone() error {
	k := &keystone{password: secret()}
	script, conf := c.in("keystone.py"), c.in("keystone.conf")
	if err := os.MkdirAll(c.in(keysDir), 0o700); err != nil {
		return err
	}
	files := map[string]string{script: string(keystoneScript), conf: c.keystoneConf()}
	for _, name := range []string{"0", "1"} { // the next key and the present one (Keystone, "Fernet tokens")
		b := make([]byte, 32)
		_, _ = rand.Read(b) // never fails (crypto/rand)
		files[c.in(keysDir, name)] = base64.URLEncoding.EncodeToString(b)
	}
	for file, text := range files {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
	}
	p, err := c.service(program{
		what: "Keystone", name: "python3", args: []string{"-P", script, conf, services.Addr().String(), fmt.Sprint(keystonePort), c.keystoneURL(), Region},
		env: []string{"BERTH_LAB_PASSWORD=" + k.password},
	})
	if err != nil {
		return err
	}
	k.ready = func(ctx context.Context) error {
		return c.within(ctx, "Keystone, which logs to "+p.LogFile(), func(ctx context.Context) error {
			_, err := c.do(ctx, call{method: "GET", url: c.keystoneURL()}, nil)
			return err
		})
	}
	c.keystone = k
	return nil
}

// waitKeystone returns once Keystone gives tokens and has Neutron in its catalog.
func (c *Cloud) waitKeystone(ctx context.Context) error {
	if err := c.keystone.ready(ctx); err != nil {
		return err
	}
	if err := c.enlist(ctx); err != nil {
		return err
	}
	c.Progress("Keystone answers at " + c.keystoneURL())
	return nil
}

func (c *Cloud) keystoneConf() string {
	return fmt.Sprintf(`[DEFAULT]
use_stderr = true
[database]
connection = %s
[token]
provider = fernet
[fernet_tokens]
key_repository = %s
[fernet_receipts]
key_repository = %s
[identity]
password_hash_rounds = 4
[oslo_policy]
enforce_scope = false
`, c.database("keystone"), c.in(keysDir), c.in(keysDir))
}

// tokensConf has Neutron ask Keystone about tokens.
func (c *Cloud) tokensConf() string {
	return fmt.Sprintf(`[keystone_authtoken]
www_authenticate_uri = %[1]s
auth_url = %[1]s
auth_type = password
user_domain_id = default
project_domain_id = default
username = admin
project_name = admin
password = %[2]s
`, c.keystoneURL(), c.keystone.password)
}
