package neutron

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
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

// How much of a reply is read, in bytes. A port takes about a kilobyte, a page has
// pageSize of them; an error's words are cut to much less afterwards.
const (
	maxReply  = 8 << 20
	maxError  = 64 << 10
	maxHeader = 256 << 10
)

var errReplyTooLarge = errors.New("the reply is too large")

// httpClient is the client for Keystone and Neutron. It follows no redirects: the token
// would go along, to wherever they lead.
func (s Settings) httpClient() (*http.Client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: s.TLS.ServerName}
	config.InsecureSkipVerify = s.TLS.Insecure
	if s.TLS.CABundle != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(s.TLS.CABundle)) {
			return nil, errors.New("tls.caBundle: has no certificate in PEM")
		}
	}
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: bounded{&http.Transport{
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
type bounded struct{ *http.Transport }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.Transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	limit := int64(maxReply)
	if resp.StatusCode >= 300 {
		limit = maxError
	}
	resp.Body = &boundedBody{resp.Body, limit}
	return resp, nil
}

type boundedBody struct {
	io.ReadCloser
	left int64
}

// Read implements io.Reader.
func (b *boundedBody) Read(to []byte) (int, error) {
	if b.left <= 0 {
		if n, err := b.ReadCloser.Read(make([]byte, 1)); n == 0 && err != nil {
			return 0, err // it ends here
		}
		return 0, fmt.Errorf("%w: more than %d MiB", errReplyTooLarge, maxReply>>20)
	}
	n, err := b.ReadCloser.Read(to[:min(int64(len(to)), b.left)])
	b.left -= int64(n)
	return n, err
}
