// Package alcor is the provider of VPC ports for Alcor (futurewei-cloud/alcor), through the REST API of
// its port, VPC and subnet managers behind one URL. There are no credentials: requests name the
// project. The only requests that are repeated are those that were refused for their host.
//
// The package was written without access to a running Alcor. It relies on what Alcor's entities and
// controllers declare:
//
//   - A listing has the ports of all projects, and ignores filters on fields that the database's
//     record lacks. The package filters again.
//   - Bulk creation gives all of its ports in a subnet the same address
//     (FixedIpsProcessor.allocateFixedIpAddress sets each to the last that was allocated),
//     and, without addresses of their own, the same MAC address (MacProcessor does not
//     count). The package makes ports one by one.
//   - A change leaves fields that are missing or null, except port_security_enabled, which becomes
//     true. Its reply is the request. The package reads the port before and after.
//   - A host cannot be removed: null leaves it, and "" is looked up at the node manager, which has no
//     node of that name. A port that is bound to no host has the tag Unbound.
//   - Revisions exist and are ignored.
//   - A host that the node manager does not have makes Alcor refuse the whole request. The package
//     makes or changes the port without the host, and reports a failed binding.
//   - Refusals of the address managers are in the text of a 500.
package alcor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"time"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/rest"
)

// DefaultNetnsPrefix is the default prefix of the names of VPCs' network namespaces (the design of
// NICs and VPCs in Arktos, "Alcor CNI Plugin").
const DefaultNetnsPrefix = "vpc-ns"

// api is Alcor's name in errors.
const api = "Alcor"

// maxReply is the maximum size of a reply in bytes. There are no pages: a listing has all ports of a
// project, of about a kilobyte each.
const maxReply = 64 << 20

// Settings configure a provider.
type Settings struct {
	// Endpoint is the URL of the API gateway in front of the port, VPC and subnet managers.
	Endpoint string
	// Project is the ID of the project that ports are made in.
	Project string
	TLS     rest.TLS
	// NetnsPrefix is the prefix of the names of the namespaces in which the agents put ports; the VPC's
	// ID follows. Empty: DefaultNetnsPrefix.
	NetnsPrefix string
	// ProviderMAC lets Alcor choose MAC addresses.
	ProviderMAC bool
	// Timeout ends a request without a reply; 0: a minute.
	Timeout time.Duration
	// Agent is the program in User-Agent, such as berth-operator/1.2; empty: berth.
	Agent string
}

// Provider implements vpcport.Provider with Alcor. Make it with Open.
type Provider struct {
	settings Settings
	base     *url.URL // ends in a slash
	http     *http.Client
}

var _ vpcport.Provider = (*Provider)(nil)

// netnsPrefix matches valid prefixes. Nodes use them in paths.
var netnsPrefix = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// Open returns a provider. It makes no requests. Errors name the invalid field of the settings.
func Open(s Settings) (*Provider, error) {
	s.Timeout, s.Agent = cmp.Or(s.Timeout, time.Minute), cmp.Or(s.Agent, "berth")
	s.NetnsPrefix = cmp.Or(s.NetnsPrefix, DefaultNetnsPrefix)
	base, err := rest.BaseURL(s.Endpoint)
	switch {
	case err != nil:
		return nil, err
	case s.Project == "":
		return nil, errors.New("project: must be set, since Alcor has no credentials that name one")
	case !rest.ValidID(s.Project):
		return nil, fmt.Errorf("project: %q must be the ID of a project: up to 64 letters, digits, - and _", s.Project)
	case !netnsPrefix.MatchString(s.NetnsPrefix):
		return nil, fmt.Errorf("alcor.netnsPrefix: %q must be a prefix of a file name: up to 64 letters, digits, dots, - and _", s.NetnsPrefix)
	}
	client, err := rest.Client(s.TLS, maxReply)
	if err != nil {
		return nil, err
	}
	return &Provider{settings: s, base: base, http: client}, nil
}

// Close closes idle connections. Calls in flight end with their contexts.
func (p *Provider) Close() { p.http.CloseIdleConnections() }

// Endpoint is the URL of Alcor, which is the same for all providers that share its rate limits.
func (p *Provider) Endpoint() string { return p.base.String() }

// Project implements vpcport.Provider.
func (p *Provider) Project(context.Context) (string, error) { return p.settings.Project, nil }

// Traits implements vpcport.Provider. Ports are made one by one, see the package comment.
func (p *Provider) Traits() vpcport.Traits {
	return vpcport.Traits{MaxBatch: 1, MaxFilter: maxFilter, ChosenMAC: !p.settings.ProviderMAC}
}
