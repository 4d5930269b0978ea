package alcor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/berthnet/berth/internal/vpcport/rest"
)

// request is one request to Alcor.
type request struct {
	method string
	path   string // below /project/PROJECT, such as ports/ID
	query  url.Values
	body   any
	names  rest.Names
	port   bool // it names one port by its ID
}

// op is the operation in errors. It has no IDs, since metrics count by it.
func (r request) op() string {
	collection, _, _ := strings.Cut(r.path, "/")
	return "Alcor " + r.method + " " + collection
}

// call makes a request and decodes the reply into to, unless that is nil. It ends with ctx or after
// Settings.Timeout.
func (p *Provider) call(ctx context.Context, r request, to any) error {
	ctx, cancel := context.WithTimeout(ctx, p.settings.Timeout)
	defer cancel()
	req, err := p.newRequest(ctx, r)
	if err != nil {
		return rest.BadRequest(r.op(), "%v", err)
	}
	resp, err := p.http.Do(req)
	if err != nil {
		return rest.Unanswered(r.op(), err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch {
	case resp.StatusCode < 200 || resp.StatusCode >= 300:
		return refusal(r, resp, body) // as far as the body was read
	case err != nil:
		return rest.Unanswered(r.op(), err)
	case to == nil:
		return nil
	}
	if err := json.Unmarshal(body, to); err != nil {
		return rest.Unanswered(r.op(), err)
	}
	return nil
}

func (p *Provider) newRequest(ctx context.Context, r request) (*http.Request, error) {
	at := p.base.JoinPath("project", p.settings.Project, r.path)
	at.RawQuery = r.query.Encode()
	var body io.Reader
	if r.body != nil {
		raw, err := json.Marshal(r.body)
		if err != nil {
			return nil, fmt.Errorf("write the request: %w", err)
		}
		body = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, at.String(), body)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", p.settings.Agent)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}
