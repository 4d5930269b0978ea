// Package rest is shared by the VPC port providers that use HTTP: the client with its limits, the wire forms of ports and subnets, and the
// errors of failed requests.
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

// TLS configures the verification of endpoints.
type TLS struct {
	CABundle   string // CA certificates in PEM; empty: the system's
	ServerName string // expected name in certificates; empty: the host of the URL
	// Insecure accepts any certificate, and allows credentials and tokens over plain HTTP.
	Insecure bool
}

// The maximum sizes of an error's body and a reply's header, in bytes. Messages are shortened further afterwards.
const (
	maxError  = 64 << 10
	maxHeader = 256 << 10
)

// ErrReplyTooLarge is the error for a body that exceeds its maximum size.
var ErrReplyTooLarge = errors.New("the reply is too large")

// Client returns a client that reads at most maxReply bytes of a reply. It does not follow redirects,
// which would send the credentials elsewhere. The error names the invalid field of the settings.
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

// bounded limits the size of replies.
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
			return 0, err // the end of the body
		}
		return 0, fmt.Errorf("%w: more than %d bytes", ErrReplyTooLarge, b.most)
	}
	n, err := b.ReadCloser.Read(to[:min(int64(len(to)), b.left)])
	b.left -= int64(n)
	return n, err
}

// BaseURL parses an endpoint of the settings, removes suffixes such as API versions, and makes it end in a slash. The error names the field
// endpoint.
func BaseURL(endpoint string, suffixes ...string) (*url.URL, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, fmt.Errorf("endpoint: %q is not a URL", endpoint)
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
