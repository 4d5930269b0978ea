// Package neutron is the provider of VPC ports for OpenStack Networking (Neutron, API v2.0), with or
// without Keystone v3. Gophercloud makes the requests and keeps the token; it fetches another token
// once when Neutron refuses the old one. No other request is repeated.
//
// It needs the Neutron extensions binding, security-group, sorting, pagination,
// standard-attr-revisions and revision-if-match, all of which ML2 has since Pike. The credentials need
// the rules for making and deleting ports, create_port:binding:host_id, update_port:binding:host_id,
// get_port:binding:host_id, get_port:binding:vif_type and get_port:binding:vif_details, and
// create_port:mac_address unless Settings.ProviderMAC is set.
package neutron

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/rest"
)

// TLS configures the verification of endpoints. Insecure also allows credentials and tokens over plain
// HTTP.
type TLS = rest.TLS

// api is Neutron's name in errors.
const api = "Neutron"

// maxReply is the maximum size of a reply in bytes. A port takes about a kilobyte, and a page has
// pageSize of them.
const maxReply = 8 << 20

// Settings configure a provider.
type Settings struct {
	// Endpoint is the URL of Keystone, with or without /v3; without credentials that of
	// Neutron, with or without /v2.0.
	Endpoint string
	// Region is the region of Neutron in Keystone's catalog; empty: the only one.
	Region string
	// Project is the ID of the project in which ports are made; empty: the project of the
	// credentials.
	Project     string
	Credentials *Credentials // nil: Neutron asks for none
	TLS         TLS
	// ProviderMAC lets Neutron choose MAC addresses, for credentials without create_port:mac_address.
	ProviderMAC bool
	// Timeout ends a request without a reply; 0: a minute.
	Timeout time.Duration
	// Agent is the program in User-Agent, such as berth-operator/1.2; empty: berth.
	Agent string
}

// Credentials are either a user's name and password or an application credential.
type Credentials struct {
	Password    *Password
	Application *Application
}

// Password is a user of Keystone and a project, by their names. An empty domain is Default, the first
// domain of every Keystone.
type Password struct {
	User, Password, UserDomain string
	Project, ProjectDomain     string
}

// Application is an application credential of Keystone. It is for one project.
type Application struct{ ID, Secret string }

// String keeps secrets out of logs.
func (Password) String() string { return "(password)" }

// GoString keeps secrets out of logs.
func (Password) GoString() string { return "(password)" }

// String keeps secrets out of logs.
func (Application) String() string { return "(application credential)" }

// GoString keeps secrets out of logs.
func (Application) GoString() string { return "(application credential)" }

// Provider implements vpcport.Provider with Neutron. Make it with Open.
type Provider struct {
	settings Settings
	endpoint string // ends in a slash and has no version
	http     *http.Client
	// connecting is a semaphore for one request of the first token; others wait for it or for the end
	// of their contexts.
	connecting chan struct{}
	client     atomic.Pointer[gophercloud.ServiceClient] // nil until there is a token
}

var _ vpcport.Provider = (*Provider)(nil)

// Open returns a provider. It makes no requests; the first call gets a token. Errors name the invalid
// field of the settings.
func Open(s Settings) (*Provider, error) {
	s.Timeout, s.Agent = cmp.Or(s.Timeout, time.Minute), cmp.Or(s.Agent, "berth")
	base, err := rest.BaseURL(s.Endpoint, "/v3", "/v2.0")
	if err != nil {
		return nil, err
	}
	if err := s.check(base); err != nil {
		return nil, err
	}
	client, err := rest.Client(s.TLS, maxReply)
	if err != nil {
		return nil, err
	}
	return &Provider{settings: s, endpoint: base.String(), http: client, connecting: make(chan struct{}, 1)}, nil
}

// Endpoint is Settings.Endpoint in a canonical form without a version.
func (p *Provider) Endpoint() string { return p.endpoint }

// Close closes idle connections. Calls in flight end with their contexts.
func (p *Provider) Close() { p.http.CloseIdleConnections() }

func (s Settings) check(base *url.URL) error {
	c := s.Credentials
	switch {
	case c == nil && s.Project == "":
		return errors.New("project: must be set where there are no credentials that name one")
	case c == nil:
		return nil
	case base.Scheme != "https" && !s.TLS.Insecure:
		return errors.New("endpoint: must begin with https:// where credentials go to it")
	case (c.Password == nil) == (c.Application == nil):
		return errors.New("credentials: must be a password or an application credential")
	}
	fields := map[string]string{}
	if w := c.Password; w != nil {
		fields = map[string]string{"username": w.User, "password": w.Password, "project": w.Project}
	}
	if a := c.Application; a != nil {
		fields = map[string]string{"id": a.ID, "secret": a.Secret}
	}
	for _, name := range []string{"username", "password", "project", "id", "secret"} {
		if v, ok := fields[name]; ok && v == "" {
			return fmt.Errorf("credentials: %s must be set", name)
		}
	}
	return nil
}
