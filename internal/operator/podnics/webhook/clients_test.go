package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/web"
	"github.com/berthnet/berth/internal/web/webtest"
)

// cluster is what is known of the addresses of one.
type cluster struct {
	servers, nodes []netip.Addr
	err            error
	looks          int
}

func (c *cluster) clients(also ...string) *clients {
	out := &clients{
		servers:   func(context.Context) ([]netip.Addr, error) { c.looks++; return c.servers, c.err },
		nodes:     func(context.Context) ([]netip.Addr, error) { return c.nodes, nil },
		authority: func() *x509.CertPool { return nil },
		clock:     clock.Real{}, log: slog.New(slog.DiscardHandler), metrics: NewMetrics(),
	}
	for _, text := range also {
		out.also = append(out.also, netip.MustParsePrefix(text))
	}
	return out
}

var (
	apiServer = netip.MustParseAddr("10.0.0.2")
	node      = netip.MustParseAddr("10.0.0.7")
	aPod      = netip.MustParseAddr("10.66.0.1")
)

func TestWhoMayAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		known := &cluster{servers: []netip.Addr{apiServer}, nodes: []netip.Addr{node}}
		c := known.clients("10.99.0.0/16")
		for a, want := range map[string]bool{
			"10.0.0.2": true, "10.0.0.7": true, "127.0.0.1": true, "10.99.0.1": true, "10.66.0.1": false, "2001:db8::1": false,
		} {
			if got := c.mayAsk(t.Context(), netip.MustParseAddr(a)); got != want {
				t.Errorf("%s may ask: %v", a, got)
			}
		}
		for a, want := range map[netip.Addr]bool{apiServer: true, node: false, aPod: false} {
			if got := c.preferred(a); got != want {
				t.Errorf("%s is preferred: %v", a, got)
			}
		}
		if known.looks != 1 {
			t.Errorf("the addresses were read %d times at once", known.looks)
		}
		time.Sleep(lookAgain) //nolint:forbidigo // in a synctest bubble
		fresh := netip.MustParseAddr("10.0.0.3")
		known.servers = append(known.servers, fresh)
		if !c.mayAsk(t.Context(), fresh) || !c.preferred(fresh) {
			t.Error("an API server that is new may not ask")
		}
		time.Sleep(lookAgain) //nolint:forbidigo // in a synctest bubble
		known.err = errors.New("forbidden")
		if c.mayAsk(t.Context(), aPod) || !c.mayAsk(t.Context(), apiServer) {
			t.Error("what was known does not hold while nothing can be read")
		}
		if c := known.clients(); !c.mayAsk(t.Context(), aPod) {
			t.Error("an operator that could never read the addresses refuses the API server too")
		}
	})
}

// Others who may ask keep neither the API server nor a node out of the webhook.
func TestAttacksOnTheWebhook(t *testing.T) {
	serving, err := authorityOf(t).serving(time.Now(), []string{"x"})
	if err != nil {
		t.Fatal(err)
	}
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	webtest.Try(t, func(*testing.T) webtest.Server {
		c := (&cluster{servers: []netip.Addr{apiServer}, nodes: []netip.Addr{node}}).clients("10.66.0.0/16")
		return webtest.Server{
			At: netip.MustParseAddr("10.0.0.9"), TLS: true, Slow: "/validate", Path: "/validate", Body: "{}",
			Serve: func(ctx context.Context, l net.Listener) error {
				c.look(ctx, 0)
				return web.Serve(ctx, l, echo, servingWith(serving, c))
			},
			Honest: []netip.Addr{apiServer, node},
		}
	})
}

func servingWith(cert *tls.Certificate, c *clients) web.Options {
	return serving(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert, nil }, c)
}

func authorityOf(t *testing.T) authority {
	t.Helper()
	a, err := newAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// With an authority in the Secret only who has a certificate of it is answered, wherever it is.
func TestClientsWithCertificates(t *testing.T) {
	ours, theirs := authorityOf(t), authorityOf(t)
	cert, err := ours.serving(time.Now(), []string{"x"})
	if err != nil {
		t.Fatal(err)
	}
	m := &memory{clients: bundle([]authority{theirs})}
	k := m.keeper(func() bool { return true })
	if err := k.keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := (&cluster{}).clients()
	c.authority = k.clients
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		ended <- web.Serve(ctx, l, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), servingWith(cert, c))
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	ask := func(by ...authority) error {
		with := &tls.Config{InsecureSkipVerify: true}
		for _, a := range by {
			der, err := sign(&x509.Certificate{
				Subject: pkix.Name{CommonName: "kube-apiserver"}, NotBefore: time.Now().Add(-skew), NotAfter: time.Now().Add(skew),
				KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			}, a.cert, a.key, a.key)
			if err != nil {
				t.Fatal(err)
			}
			with.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.key}, nil
			}
		}
		client := &http.Client{Timeout: limitOfTest, Transport: &http.Transport{TLSClientConfig: with, DisableKeepAlives: true}}
		answer, err := client.Post("https://"+l.Addr().String(), "application/json", nil)
		if err == nil {
			err = answer.Body.Close()
		}
		return err
	}
	if err := ask(theirs); err != nil {
		t.Errorf("with a certificate: %v", err)
	}
	if err := ask(); err == nil {
		t.Error("it answers who has none")
	}
	if err := ask(ours); err == nil {
		t.Error("it answers who has one of another authority")
	}
	m.clients = []byte("nonsense")
	if err := k.keep(t.Context()); err == nil {
		t.Error("an authority that cannot be read is not told of")
	}
	if err := ask(theirs); err == nil {
		t.Error("it answers though the authority cannot be read")
	}
	m.clients = nil
	if err := errors.Join(k.keep(t.Context()), ask()); err != nil {
		t.Errorf("without an authority: %v", err)
	}
}

const limitOfTest = 30 * time.Second
