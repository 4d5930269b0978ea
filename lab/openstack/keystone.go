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

// Region is Neutron's region in Keystone's catalog.
const Region = "lab"

// keystone is a running Keystone.
type keystone struct {
	programs *programs
	password string // of the user admin
	log      string // file

	mu      sync.Mutex // guards all below; held during requests for a token, so that only one is requested
	token   string     // of the user admin, in the project admin
	since   time.Time  // when the token was requested
	project string     // the ID of the project of all resources
}

func keystoneURL() string {
	return "http://" + netip.AddrPortFrom(services.Addr(), keystonePort).String() + "/v3"
}

// secret returns a new password.
func secret() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}

// startKeystone starts Keystone with new keys and a user admin.
func startKeystone(c *programs) (*keystone, error) {
	k := &keystone{programs: c, password: secret()}
	script, conf := c.in("keystone.py"), c.in("keystone.conf")
	if err := os.MkdirAll(c.in(keysDir), 0o700); err != nil {
		return nil, err
	}
	files := map[string]string{script: string(keystoneScript), conf: k.conf()}
	for _, name := range []string{"0", "1"} { // the staged and the primary key (Keystone, "Fernet tokens")
		b := make([]byte, 32)
		_, _ = rand.Read(b) // never fails (crypto/rand)
		files[c.in(keysDir, name)] = base64.URLEncoding.EncodeToString(b)
	}
	for file, text := range files {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	p, err := c.service(program{
		what: "Keystone", name: "python3", args: []string{"-P", script, conf, services.Addr().String(), fmt.Sprint(keystonePort), keystoneURL(), Region},
		env: []string{"BERTH_LAB_PASSWORD=" + k.password},
	})
	if err != nil {
		return nil, err
	}
	k.log = p.LogFile()
	return k, nil
}

// wait returns once Keystone issues tokens and has Neutron in its catalog.
func (k *keystone) wait(ctx context.Context) error {
	err := k.programs.within(ctx, "Keystone, which logs to "+k.log, func(ctx context.Context) error {
		_, err := k.programs.do(ctx, call{method: "GET", url: keystoneURL()}, nil)
		return err
	})
	if err == nil {
		err = k.initialize(ctx)
	}
	if err != nil {
		return err
	}
	k.programs.Progress("Keystone responds at " + keystoneURL())
	return nil
}

func (k *keystone) conf() string {
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
`, k.programs.database("keystone"), k.programs.in(keysDir), k.programs.in(keysDir))
}

// tokensConf returns the section of Neutron's configuration that makes it validate tokens with Keystone.
func (k *keystone) tokensConf() string {
	return fmt.Sprintf(`[keystone_authtoken]
www_authenticate_uri = %[1]s
auth_url = %[1]s
auth_type = password
user_domain_id = default
project_domain_id = default
username = admin
project_name = admin
password = %[2]s
`, keystoneURL(), k.password)
}
