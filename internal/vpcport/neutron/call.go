package neutron

import (
	"context"
	"net/http"
	"net/url"

	"github.com/gophercloud/gophercloud/v2"
)

// request is one request to Neutron.
type request struct {
	method string
	path   string // below /v2.0, such as ports/ID
	query  url.Values
	body   any
	match  string // If-Match; empty: none
	scope  scope
}

// expected is the status of success (Networking API v2.0).
var expected = map[string]int{
	http.MethodGet: http.StatusOK, http.MethodPost: http.StatusCreated, http.MethodPut: http.StatusOK, http.MethodDelete: http.StatusNoContent,
}

// op is the operation in errors. It has no IDs, since metrics count by it.
func (r request) op() string {
	path := r.path
	for i := range path {
		if path[i] == '/' {
			path = path[:i]
			break
		}
	}
	return "Neutron " + r.method + " " + path
}

// call makes a request and decodes the reply into to, unless that is nil. It ends with ctx or after
// Settings.Timeout.
func (p *Provider) call(ctx context.Context, r request, to any) error {
	ctx, cancel := context.WithTimeout(ctx, p.settings.Timeout)
	defer cancel()
	client, err := p.connect(ctx)
	if err != nil {
		return err
	}
	at := client.ServiceURL(r.path)
	if len(r.query) > 0 {
		at += "?" + r.query.Encode()
	}
	o := &gophercloud.RequestOpts{JSONBody: r.body, JSONResponse: to, OkCodes: []int{expected[r.method]}}
	if r.match != "" {
		o.MoreHeaders = map[string]string{"If-Match": r.match}
	}
	resp, err := client.Request(ctx, r.method, at, o)
	if resp != nil && resp.Body != nil {
		_ = resp.Body.Close() // read already
	}
	if err != nil {
		return p.conceal(failure(r.op(), err, r.scope), client.ProviderClient)
	}
	return nil
}
