package neutron

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"

	"github.com/berthnet/berth/internal/vpcport"
)

// Options are how a Neutron is reached.
type Options struct {
	// Endpoint is Keystone's URL; without Auth that of Neutron itself.
	Endpoint string
	Region   string // empty: the only one
	// Auth is what Keystone is shown; nil: nothing, as to a Neutron with noauth.
	Auth *Auth
	// Project is the ID of the project that ports are made in; empty: that of Auth.
	Project string

	CABundle   string // PEM; empty: what the machine trusts
	ServerName string // that certificates must have; empty: that of the URL
	Insecure   bool   // any certificate is taken
	UserAgent  string

	// MaxBatch is how many ports one request asks for; 64 when 0.
	MaxBatch int
	// ProviderMAC leaves the choice of MAC addresses to Neutron.
	ProviderMAC bool
	// Timeout bounds a request; 30 s when 0.
	Timeout time.Duration
}

// Auth is a user's password or, with ApplicationCredentialID, an application credential.
type Auth struct {
	Username, Password, UserDomain string
	Project, ProjectDomain         string // names

	ApplicationCredentialID, ApplicationCredentialSecret string
}

// How much goes into one request by default. Neutron takes bodies of 114,688 bytes
// (oslo.middleware, max_request_body_size) and URLs of 8,192 (neutron, wsgi), of which
// a port takes some 600 and an ID or device in a filter some 60.
const (
	defaultBatch   = 64
	maxFilter      = 96
	pageSize       = 500
	defaultTimeout = 30 * time.Second
)

// Client is a vpcport.Provider.
type Client struct {
	options  Options
	provider *gophercloud.ProviderClient

	mu      sync.Mutex    // guards network and opening
	network *service      // nil until Keystone was asked
	opening chan struct{} // closed when who asks Keystone has ended; nil while nobody does
}

type service = gophercloud.ServiceClient

var _ vpcport.Provider = (*Client)(nil)

// New returns a client. It makes no request yet.
func New(o Options) (*Client, error) {
	o.MaxBatch, o.Timeout = cmp.Or(o.MaxBatch, defaultBatch), cmp.Or(o.Timeout, defaultTimeout)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{ServerName: o.ServerName, InsecureSkipVerify: o.Insecure, MinVersion: tls.VersionTLS12} //nolint:gosec // a setting, of which its description warns
	if o.CABundle != "" {
		transport.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !transport.TLSClientConfig.RootCAs.AppendCertsFromPEM([]byte(o.CABundle)) {
			return nil, errors.New("neutron: CABundle: expected certificates in PEM")
		}
	}
	if !strings.HasPrefix(o.Endpoint, "https://") && !strings.HasPrefix(o.Endpoint, "http://") {
		return nil, fmt.Errorf("neutron: Endpoint %q: expected a URL", o.Endpoint)
	}
	c := &Client{options: o, provider: &gophercloud.ProviderClient{
		HTTPClient: http.Client{Transport: bounded{transport}, Timeout: o.Timeout, CheckRedirect: noRedirection},
	}}
	c.provider.UserAgent.Prepend(cmp.Or(o.UserAgent, "berth"))
	if o.Auth == nil {
		base := strings.TrimSuffix(strings.TrimSuffix(o.Endpoint, "/"), "/v2.0") + "/"
		c.network = &service{ProviderClient: c.provider, Endpoint: base, ResourceBase: base + "v2.0/"}
	}
	return c, nil
}

// Traits implements vpcport.Provider.
func (c *Client) Traits() vpcport.Traits {
	return vpcport.Traits{MaxBatch: c.options.MaxBatch, MaxFilter: maxFilter, ChosenMAC: !c.options.ProviderMAC, Revisions: true}
}

// service is Neutron's, as Keystone's catalog has it. Of several callers one asks
// Keystone, and the others wait for the outcome.
func (c *Client) service(ctx context.Context) (*service, error) {
	for {
		c.mu.Lock()
		network, opening := c.network, c.opening
		if network == nil && opening == nil {
			opening = make(chan struct{})
			c.opening = opening
			c.mu.Unlock()
			return c.open(ctx, opening)
		}
		c.mu.Unlock()
		if network != nil {
			return network, nil
		}
		select {
		case <-opening:
		case <-ctx.Done():
			return nil, &vpcport.Error{Class: vpcport.Transient, Op: "Keystone", Err: context.Cause(ctx)}
		}
	}
}

// open asks Keystone for a token and the catalog.
func (c *Client) open(ctx context.Context, opening chan struct{}) (*service, error) {
	network, err := c.authenticate(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.network, c.opening = network, nil
	close(opening)
	return network, err
}

func (c *Client) authenticate(ctx context.Context) (*service, error) {
	const op = "Keystone POST auth/tokens"
	a := c.options.Auth
	options := gophercloud.AuthOptions{
		IdentityEndpoint: c.options.Endpoint, AllowReauth: true,
		Username: a.Username, Password: a.Password, DomainName: cmp.Or(a.UserDomain, "Default"),
		Scope: &gophercloud.AuthScope{ProjectName: a.Project, DomainName: cmp.Or(a.ProjectDomain, "Default")},
	}
	if a.ApplicationCredentialID != "" {
		options = gophercloud.AuthOptions{
			IdentityEndpoint: c.options.Endpoint, AllowReauth: true,
			ApplicationCredentialID: a.ApplicationCredentialID, ApplicationCredentialSecret: a.ApplicationCredentialSecret,
		}
	}
	base, err := openstack.NewClient(c.options.Endpoint)
	if err != nil {
		return nil, &vpcport.Error{Class: vpcport.Bug, Op: op, Err: err}
	}
	base.HTTPClient, base.UserAgent = c.provider.HTTPClient, c.provider.UserAgent
	if err := openstack.AuthenticateV3(ctx, base, &options, gophercloud.EndpointOpts{}); err != nil {
		return nil, failed(op, err)
	}
	network, err := openstack.NewNetworkV2(base, gophercloud.EndpointOpts{Region: c.options.Region})
	if _, lacks := errors.AsType[*gophercloud.ErrEndpointNotFound](err); lacks {
		return nil, &vpcport.Error{Class: vpcport.NetworkGone, Op: op, Message: fmt.Sprintf("the catalog has no Neutron of region %q", c.options.Region), Err: err}
	}
	if err != nil {
		return nil, failed("Neutron GET versions", err)
	}
	return network, nil
}
