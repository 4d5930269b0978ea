// Package neutron is a provider of VPC ports: OpenStack Networking (Neutron, API v2.0)
// behind Keystone v3 or without it. Requests go by gophercloud, which has the token and
// gets another one, once, when Neutron no longer takes it. Nothing else is repeated.
//
// What it needs of Neutron are the extensions binding, security-group, sorting,
// pagination, standard-attr-revisions and revision-if-match, all of which ML2 has since
// Pike; of the credentials, besides making and deleting ports, the rules
// create_port:binding:host_id, update_port:binding:host_id, get_port:binding:host_id,
// get_port:binding:vif_type and get_port:binding:vif_details, and create_port:mac_address
// where MAC addresses are asked for.
//
//	settings.go   where Neutron is, and who asks
//	auth.go       tokens, and Neutron's URL from the catalog
//	call.go       one request
//	errors.go     failures into classes
//	conceal.go    errors without credentials and tokens
//	wire.go       requests and replies as they are sent
//	binding.go    how a bound port is plugged
//	network.go    Provider.Network
//	pages.go      listings, page by page
//	list.go       Provider.Ports and Get
//	create.go     Provider.Create
//	change.go     Provider.Update and Delete
//	settle.go     what the answer to a binding does not tell
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

// TLS says how endpoints prove what they are. Insecure lets credentials and tokens go to
// endpoints without TLS, too.
type TLS = rest.TLS

// maxReply is how much of a reply is read, in bytes. A port takes about a kilobyte, a page
// has pageSize of them.
const maxReply = 8 << 20

// Settings say where Neutron is and who asks.
type Settings struct {
	// Endpoint is the URL of Keystone, with or without /v3; without credentials that of
	// Neutron, with or without /v2.0.
	Endpoint string
	// Region is that of Neutron in Keystone's catalog; empty: the only one.
	Region string
	// Project is the ID of the project that ports are made in; empty: that of the
	// credentials, which then must not be nil.
	Project     string
	Credentials *Credentials // nil: Neutron asks for none
	TLS         TLS
	// ProviderMAC leaves the choice of MAC addresses to Neutron, for credentials that may
	// not have it (create_port:mac_address).
	ProviderMAC bool
	// Timeout ends a request that nothing came of; 0: a minute.
	Timeout time.Duration
	// Agent is the program in User-Agent, such as berth-operator/1.2; empty: berth.
	Agent string
}

// Credentials are a user's name and password, or an application credential: one of both.
type Credentials struct {
	Password    *Password
	Application *Application
}

// Password is a user of Keystone with the project to work in. All are names; an empty
// domain is Default, which Keystone begins with.
type Password struct {
	User, Password, UserDomain string
	Project, ProjectDomain     string
}

// Application is an application credential of Keystone, which is for one project.
type Application struct{ ID, Secret string }

// String keeps secrets out of logs.
func (Password) String() string { return "(password)" }

// GoString keeps secrets out of logs.
func (Password) GoString() string { return "(password)" }

// String keeps secrets out of logs.
func (Application) String() string { return "(application credential)" }

// GoString keeps secrets out of logs.
func (Application) GoString() string { return "(application credential)" }

// Provider is Neutron as vpcport has it. Make it with Open.
type Provider struct {
	settings Settings
	endpoint string // ends in a slash and has no version
	http     *http.Client
	// Who fills connecting gets the first token; the others wait for it or for the end
	// of their contexts.
	connecting chan struct{}
	client     atomic.Pointer[gophercloud.ServiceClient] // nil until there is a token
}

var _ vpcport.Provider = (*Provider)(nil)

// Open returns a provider. It talks to nobody yet: the first call gets a token. Errors name
// the field of the settings that cannot be.
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

// Endpoint is the URL of what is asked first, without a version: the same for each way to
// write it.
func (p *Provider) Endpoint() string { return p.endpoint }

// Close ends connections that nobody uses. Calls under way end by their contexts.
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
