package neutron

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/rest"
)

const (
	opToken       = "Keystone POST auth/tokens"
	defaultDomain = "Default"
)

// connect returns a client with a token. It gets the first token if there is none.
func (p *Provider) connect(ctx context.Context) (*gophercloud.ServiceClient, error) {
	if c := p.client.Load(); c != nil {
		return c, nil
	}
	select {
	case p.connecting <- struct{}{}:
		defer func() { <-p.connecting }()
	case <-ctx.Done():
		return nil, failure(opToken, ctx.Err(), rest.Request{})
	}
	if c := p.client.Load(); c != nil { // another goroutine got it
		return c, nil
	}
	c, err := p.authenticate(ctx)
	if err == nil {
		p.client.Store(c)
	}
	return c, err
}

// Project implements vpcport.Provider.
func (p *Provider) Project(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, p.settings.Timeout)
	defer cancel()
	client, err := p.connect(ctx)
	if err != nil || p.settings.Credentials == nil {
		return p.settings.Project, err
	}
	token, ok := client.GetAuthResult().(tokens.CreateResult)
	if !ok {
		return "", rest.BadReply(opToken, "a token without a body")
	}
	project, err := token.ExtractProject()
	if err != nil || project == nil || !rest.ValidID(project.ID) {
		return "", rest.BadReply(opToken, "a token without a project")
	}
	return project.ID, nil
}

func (p *Provider) authenticate(ctx context.Context) (*gophercloud.ServiceClient, error) {
	client, err := openstack.NewClient(p.endpoint)
	if err != nil {
		return nil, &vpcport.Error{Class: vpcport.Invalid, Op: opToken, Message: fmt.Sprintf("endpoint: %v", err), Err: err}
	}
	client.HTTPClient = *p.http
	client.UserAgent.Prepend(p.settings.Agent)
	if p.settings.Credentials == nil {
		return service(client, p.endpoint), nil
	}
	if err := openstack.AuthenticateV3(ctx, client, p.settings.options(p.endpoint), gophercloud.EndpointOpts{}); err != nil {
		return nil, p.conceal(failure(opToken, err, rest.Request{}), nil)
	}
	result, ok := client.GetAuthResult().(tokens.CreateResult)
	if !ok {
		return nil, &vpcport.Error{Class: vpcport.Bug, Op: opToken, Message: "the token has no catalog"}
	}
	catalog, err := result.ExtractServiceCatalog()
	if err != nil {
		return nil, &vpcport.Error{Class: vpcport.Bug, Op: opToken, Message: "the catalog cannot be read", Err: err}
	}
	endpoint, err := p.settings.endpointIn(catalog.Entries)
	if err != nil {
		return nil, &vpcport.Error{Class: vpcport.Invalid, Op: opToken, Message: err.Error(), Err: err}
	}
	return service(client, endpoint), nil
}

// service is Neutron's API v2.0 below a URL that ends in a slash.
func service(client *gophercloud.ProviderClient, endpoint string) *gophercloud.ServiceClient {
	return &gophercloud.ServiceClient{ProviderClient: client, Endpoint: endpoint, ResourceBase: endpoint + "v2.0/", Type: "network"}
}

// options converts the credentials for gophercloud. With AllowReauth it gets another token, once for a
// request, when Neutron refuses one.
func (s Settings) options(endpoint string) *gophercloud.AuthOptions {
	o := &gophercloud.AuthOptions{IdentityEndpoint: endpoint, AllowReauth: true}
	if a := s.Credentials.Application; a != nil {
		o.ApplicationCredentialID, o.ApplicationCredentialSecret = a.ID, a.Secret
	}
	if w := s.Credentials.Password; w != nil {
		o.Username, o.Password, o.DomainName = w.User, w.Password, cmp.Or(w.UserDomain, defaultDomain)
		o.Scope = &gophercloud.AuthScope{ProjectName: w.Project, DomainName: cmp.Or(w.ProjectDomain, defaultDomain)}
	}
	return o
}

// endpointIn is Neutron's public URL in Keystone's catalog, in the region of the settings or the only
// one.
func (s Settings) endpointIn(catalog []tokens.CatalogEntry) (string, error) {
	urls := map[string]string{} // by region
	for _, e := range catalog {
		for _, at := range e.Endpoints {
			if e.Type == "network" && at.Interface == "public" {
				urls[at.Region] = at.URL
			}
		}
	}
	regions := strings.Join(slices.Sorted(maps.Keys(urls)), ", ")
	found, ok := urls[s.Region]
	switch {
	case len(urls) == 0:
		return "", errors.New("endpoint: Keystone's catalog has no public endpoint of a network service")
	case s.Region == "" && len(urls) > 1:
		return "", fmt.Errorf("region: must be set, Keystone's catalog has %s", regions)
	case s.Region == "":
		found = urls[regions]
	case !ok:
		return "", fmt.Errorf("region: no region %s, Keystone's catalog has %s", s.Region, regions)
	}
	return s.endpointOf(found)
}

func (s Settings) endpointOf(found string) (string, error) {
	u, err := rest.BaseURL(found, "/v3", "/v2.0")
	if err != nil {
		return "", fmt.Errorf("the network service in Keystone's catalog: %w", err)
	}
	if u.Scheme != "https" && !s.TLS.Insecure {
		return "", fmt.Errorf("the network service in Keystone's catalog is at %s: tokens are not sent without TLS", (&url.URL{Scheme: u.Scheme, Host: u.Host}).String())
	}
	return u.String(), nil
}
