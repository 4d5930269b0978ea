// Package alcor is a provider of VPC ports: Alcor (futurewei-cloud/alcor), by the REST API
// of its port, VPC and subnet managers behind one URL. There are no credentials: requests
// name the project. Nothing is repeated but what was refused for its host.
//
// No Alcor runs where this was written. What it does is by what Alcor's entities and
// controllers declare:
//
//   - A listing has ports of all projects, and is not narrowed by what the database's
//     record lacks: all is filtered here again.
//   - Bulk creation gives all of its ports in a subnet the same address
//     (FixedIpsProcessor.allocateFixedIpAddress sets each to the last that was allocated),
//     and, without addresses of their own, the same MAC address (MacProcessor does not
//     count). So ports are asked for one by one.
//   - A change leaves what it does not name or has null, but for port_security_enabled,
//     which becomes true; and its answer is the request. So a port is read before and
//     after.
//   - No host can be taken away: null leaves it, and "" is looked up at the node manager,
//     which has none of that name. A port that is bound to none has the tag Unbound.
//   - Revisions are there and not heeded.
//   - A host that the node manager does not have refuses the whole request. The port is
//     made or changed without it, and its binding has failed.
//   - Refusals of the managers of addresses come within the text of a 500.
//
// What follows:
//
//	settings.go  where Alcor is
//	call.go      one request
//	errors.go    failures into classes
//	wire.go      requests and replies as they are sent
//	network.go   Provider.Network
//	list.go      Provider.Ports and Get
//	create.go    Provider.Create
//	change.go    Provider.Update and Delete
//	binding.go   hosts
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

// DefaultNetnsPrefix begins the names of the network namespaces of VPCs (the design of NICs
// and VPCs in Arktos, "Alcor CNI Plugin").
const DefaultNetnsPrefix = "vpc-ns"

// maxReply is how much of a reply is read, in bytes. There are no pages: a listing has all
// ports of a project at once, of about a kilobyte each.
const maxReply = 64 << 20

// Settings say where Alcor is.
type Settings struct {
	// Endpoint is the URL below which the port, VPC and subnet managers are: the API
	// gateway's.
	Endpoint string
	// Project is the ID of the project that ports are made in.
	Project string
	TLS     rest.TLS
	// NetnsPrefix begins the names of the namespaces in which the agents put ports; the
	// VPC's ID follows. Empty: DefaultNetnsPrefix.
	NetnsPrefix string
	// ProviderMAC leaves the choice of MAC addresses to Alcor.
	ProviderMAC bool
	// Timeout ends a request that nothing came of; 0: a minute.
	Timeout time.Duration
	// Agent is the program in User-Agent, such as berth-operator/1.2; empty: berth.
	Agent string
}

// Provider is Alcor as vpcport has it. Make it with Open.
type Provider struct {
	settings Settings
	base     *url.URL // ends in a slash
	http     *http.Client
}

var _ vpcport.Provider = (*Provider)(nil)

// netnsPrefix is what may begin the name of a namespace: it goes to nodes, as part of a path.
var netnsPrefix = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// Open returns a provider. It talks to nobody. Errors name the field of the settings that
// cannot be.
func Open(s Settings) (*Provider, error) {
	s.Timeout, s.Agent = cmp.Or(s.Timeout, time.Minute), cmp.Or(s.Agent, "berth")
	s.NetnsPrefix = cmp.Or(s.NetnsPrefix, DefaultNetnsPrefix)
	base, err := rest.BaseURL(s.Endpoint)
	switch {
	case err != nil:
		return nil, err
	case s.Project == "":
		return nil, errors.New("project: must be set: Alcor has no credentials that name one")
	case !rest.ValidID(s.Project):
		return nil, fmt.Errorf("project: %q must be the ID of a project: up to 64 letters, digits, - and _", s.Project)
	case !netnsPrefix.MatchString(s.NetnsPrefix):
		return nil, fmt.Errorf("alcor.netnsPrefix: %q must begin a file's name: up to 64 letters, digits, dots, - and _", s.NetnsPrefix)
	}
	client, err := rest.Client(s.TLS, maxReply)
	if err != nil {
		return nil, err
	}
	return &Provider{settings: s, base: base, http: client}, nil
}

// Close ends connections that nobody uses. Calls under way end by their contexts.
func (p *Provider) Close() { p.http.CloseIdleConnections() }

// Endpoint is the URL by which Alcor is reached: the same for providers whose calls it
// counts together.
func (p *Provider) Endpoint() string { return p.base.String() }

// Project implements vpcport.Provider.
func (p *Provider) Project(context.Context) (string, error) { return p.settings.Project, nil }

// Traits implements vpcport.Provider. Ports are made one by one, see the package.
func (p *Provider) Traits() vpcport.Traits {
	return vpcport.Traits{MaxBatch: 1, MaxFilter: maxFilter, ChosenMAC: !p.settings.ProviderMAC}
}
