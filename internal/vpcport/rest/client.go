// Package rest is what providers of VPC ports over HTTP have in common: the client, with
// bounds of what is read; words of a server, cut for people; IDs in URLs; what a refusal is
// about.
//
//	client.go  TLS, time-outs, how much of a reply is read
//	url.go     endpoints
//	text.go    what a server says, for people
//	ids.go     IDs, and lists of them in URLs
//	about.go   what a refusal is about
package rest

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// TLS says how endpoints prove what they are.
type TLS struct {
	CABundle   string // certificates in PEM in place of the system's; empty: those
	ServerName string // that certificates must have; empty: that of the URL
	// Insecure takes any certificate, and lets credentials and tokens go to endpoints
	// without TLS.
	Insecure bool
}

// How much of a refusal and of a reply's header is read, in bytes; what it says is cut to
// much less afterwards.
const (
	maxError  = 64 << 10
	maxHeader = 256 << 10
)

// ErrReplyTooLarge is that of a body which goes on beyond what is read of it.
var ErrReplyTooLarge = errors.New("the reply is too large")

// Client is a client that reads so many bytes of a reply at most. It follows no redirects:
// credentials would go along, to wherever they lead. The error names the field of the
// settings that cannot be.
func Client(t TLS, maxReply int64) (*http.Client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	config.InsecureSkipVerify = t.Insecure
	if t.CABundle != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(t.CABundle)) {
			return nil, errors.New("tls.caBundle: has no certificate in PEM")
		}
	}
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: bounded{maxReply, &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			DialContext:            (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
			TLSClientConfig:        config,
			TLSHandshakeTimeout:    10 * time.Second,
			ForceAttemptHTTP2:      true,
			MaxIdleConns:           32,
			MaxIdleConnsPerHost:    16,
			IdleConnTimeout:        90 * time.Second,
			MaxResponseHeaderBytes: maxHeader,
		}},
	}, nil
}

// bounded lets no more than so much of any reply through.
type bounded struct {
	maxReply int64
	*http.Transport
}

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.Transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	limit := b.maxReply
	if resp.StatusCode >= 300 {
		limit = maxError
	}
	resp.Body = &boundedBody{resp.Body, limit, limit}
	return resp, nil
}

type boundedBody struct {
	io.ReadCloser
	left, most int64
}

// Read implements io.Reader.
func (b *boundedBody) Read(to []byte) (int, error) {
	if b.left <= 0 {
		if n, err := b.ReadCloser.Read(make([]byte, 1)); n == 0 && err != nil {
			return 0, err // it ends here
		}
		return 0, fmt.Errorf("%w: more than %d bytes", ErrReplyTooLarge, b.most)
	}
	n, err := b.ReadCloser.Read(to[:min(int64(len(to)), b.left)])
	b.left -= int64(n)
	return n, err
}

// BaseURL is an endpoint as settings have it with a slash at its end, and without those of
// the suffixes that it has: versions of an API, say. The error names the field endpoint.
func BaseURL(endpoint string, suffixes ...string) (*url.URL, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, fmt.Errorf("endpoint: %q is no URL", endpoint)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("endpoint: %q must begin with http:// or https:// and have neither user, query nor fragment", u.Redacted())
	}
	path := strings.TrimRight(u.Path, "/")
	for _, s := range suffixes {
		path = strings.TrimSuffix(path, s)
	}
	u.Path = path + "/"
	return u, nil
}
