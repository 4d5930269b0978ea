package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/operator/certificate"
	"github.com/berthnet/berth/internal/web"
	"github.com/berthnet/berth/internal/web/webtest"
	"github.com/berthnet/berth/test/harness"
)

// memory is a store whose API server trusts authorities with a delay.
type memory struct {
	lag time.Duration
	mu  sync.Mutex // guards the fields below

	certs, keys []byte
	clients     []byte // authority of client certificates
	version     int
	trusted     []byte // trusted by the API server
	fail        error  // error of every call
	writes      int
}

func (m *memory) read(context.Context) (data map[string][]byte, version string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return map[string][]byte{keyCerts: m.certs, keyKeys: m.keys, keyClients: m.clients}, fmt.Sprint(m.version), m.fail
}

func (m *memory) write(_ context.Context, certs, keys []byte, version string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil || version != fmt.Sprint(m.version) {
		return errors.Join(m.fail, errors.New("conflict"))
	}
	m.certs, m.keys = certs, keys
	m.version++
	m.writes++
	return nil
}

func (m *memory) trust(_ context.Context, certs []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	time.AfterFunc(m.lag, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.trusted = certs
	})
	return nil
}

// accepts returns nil if the API server would accept the certificate that a keeper serves with.
func (m *memory) accepts(k *keeper) error {
	cert, err := k.certificate(nil)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(m.trusted)
	_, err = cert.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "berth-operator.kube-system.svc", CurrentTime: time.Now()})
	return err
}

func (m *memory) keeper(leads func() bool) *keeper {
	return &keeper{store: m, names: []string{"berth-operator.kube-system.svc"}, leads: leads, every: 20 * time.Minute, clock: clock.Real{}, log: slog.New(slog.DiscardHandler), metrics: NewMetrics()}
}

// In four years there is no moment at which the API server would not accept the certificates of both operators, while authorities and
// certificates are rotated, leadership changes, and the API server trusts authorities with a delay.
func TestCertificatesAreAlwaysTrusted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		m, leader := &memory{lag: 10 * time.Minute}, 0
		var mu sync.Mutex // guards leader
		var both []*keeper
		for i := range 2 {
			k := m.keeper(func() bool { mu.Lock(); defer mu.Unlock(); return leader == i })
			both = append(both, k)
			go func() { _ = k.run(ctx) }()
		}
		time.Sleep(m.lag + lookFirst + time.Second) //nolint:forbidigo // inside a synctest bubble
		begin, authorities := time.Now(), map[string]bool{}
		for time.Since(begin) < 4*authorityLife {
			for i, k := range both {
				if err := m.accepts(k); err != nil {
					t.Fatalf("after %v, operator %d is not trusted: %v", time.Since(begin), i, err)
				}
				cert, _ := k.certificate(nil)
				authorities[string(cert.Leaf.AuthorityKeyId)] = true
			}
			mu.Lock()
			leader = rand.IntN(2)
			mu.Unlock()
			time.Sleep(time.Duration(1+rand.IntN(12)) * time.Hour) //nolint:forbidigo // inside a synctest bubble
		}
		cancel()
		synctest.Wait()
		// One at the beginning, and another every eight months.
		if m.writes < 6 || m.writes > 14 || len(authorities) < 6 {
			t.Errorf("%d writes and %d signing authorities, want 6 to 14 writes and at least 6 authorities", m.writes, len(authorities))
		}
	})
}

func TestOnlyTheLeaderCreatesAuthorities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		k := m.keeper(func() bool { return false })
		if err := k.keep(t.Context()); err == nil || m.writes != 0 {
			t.Errorf("keep() of a standby = %v with %d writes, want an error and no writes", err, m.writes)
		}
		if _, err := k.certificate(nil); err == nil {
			t.Error("certificate() succeeded without a certificate")
		}
		leads := m.keeper(func() bool { return true })
		for what, spoil := range map[string]func(){
			"nothing":            func() { m.certs, m.keys = nil, nil },
			"no certificate":     func() { m.certs, m.keys = []byte("a"), []byte("b") },
			"half a certificate": func() { m.keys = nil },
			"key of another certificate": func() {
				other, err := newAuthority(time.Now())
				harness.OK(t, err)
				m.keys, _ = keys([]authority{other})
			},
		} {
			spoil()
			if err := leads.keep(t.Context()); err != nil {
				t.Errorf("%s: keep() of the leader: %v", what, err)
			}
			synctest.Wait()
			if err := errors.Join(k.keep(t.Context()), m.accepts(k), m.accepts(leads)); err != nil {
				t.Errorf("%s: certificate not accepted: %v", what, err)
			}
		}
		writes := m.writes
		if err := leads.keep(t.Context()); err != nil || m.writes != writes {
			t.Errorf("second keep() = %v with %d writes, want no writes", err, m.writes-writes)
		}
		m.fail = errors.New("the API server is away")
		if err := leads.keep(t.Context()); err == nil {
			t.Error("keep() succeeded without an API server")
		}
		if err := m.accepts(leads); err != nil {
			t.Errorf("certificate not accepted while the API server is unavailable: %v", err)
		}
	})
}

// sharedLog is a log that is read while others write to it.
type sharedLog struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *sharedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *sharedLog) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// An empty Secret is not logged while an operator may be about to lead; if it stays empty, that is logged once. All other errors are
// logged immediately.
func TestLastingEmptySecretIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		log := &sharedLog{}
		m := &memory{}
		k := m.keeper(func() bool { return false })
		k.log = slog.New(slog.NewTextHandler(log, nil))
		go func() { _ = k.run(ctx) }()
		for _, step := range []struct {
			after time.Duration
			lines int
		}{{unfilled - time.Second, 0}, {4 * time.Second, 1}, {time.Hour, 1}} {
			time.Sleep(step.after) //nolint:forbidigo // inside a synctest bubble
			synctest.Wait()
			if n := log.count("\n"); n != step.lines {
				t.Errorf("after another %v: %d log lines, want %d", step.after, n, step.lines)
			}
		}
		m.mu.Lock()
		m.fail = errors.New("the API server is away")
		m.mu.Unlock()
		time.Sleep(lookFirst) //nolint:forbidigo // inside a synctest bubble
		synctest.Wait()
		if n := log.count("is away"); n != 1 {
			t.Errorf("outage of the API server was logged %d times, want once", n)
		}
	})
}

// cluster is the addresses of a cluster as known to the webhook.
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

func TestAllowedClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		known := &cluster{servers: []netip.Addr{apiServer}, nodes: []netip.Addr{node}}
		c := known.clients("10.99.0.0/16")
		for a, want := range map[string]bool{
			"10.0.0.2": true, "10.0.0.7": true, "127.0.0.1": true, "10.99.0.1": true, "10.66.0.1": false, "2001:db8::1": false,
		} {
			if got := c.mayAsk(t.Context(), netip.MustParseAddr(a)); got != want {
				t.Errorf("mayAsk(%s) = %v", a, got)
			}
		}
		for a, want := range map[netip.Addr]bool{apiServer: true, node: false, aPod: false} {
			if got := c.preferred(a); got != want {
				t.Errorf("preferred(%s) = %v", a, got)
			}
		}
		if known.looks != 1 {
			t.Errorf("addresses were read %d times, want once", known.looks)
		}
		time.Sleep(lookAgain) //nolint:forbidigo // in a synctest bubble
		fresh := netip.MustParseAddr("10.0.0.3")
		known.servers = append(known.servers, fresh)
		if !c.mayAsk(t.Context(), fresh) || !c.preferred(fresh) {
			t.Error("a new API server is refused")
		}
		time.Sleep(lookAgain) //nolint:forbidigo // in a synctest bubble
		known.err = errors.New("forbidden")
		if c.mayAsk(t.Context(), aPod) || !c.mayAsk(t.Context(), apiServer) {
			t.Error("known addresses are not used while reading them fails")
		}
		if c := known.clients(); !c.mayAsk(t.Context(), aPod) {
			t.Error("clients are refused although the addresses have never been read")
		}
	})
}

// Other allowed clients cannot keep the API server or a node from using the webhook.
func TestAttacksOnTheWebhook(t *testing.T) {
	serving, err := authorityOf(t).serving(time.Now(), []string{"x"})
	harness.OK(t, err)
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
	harness.OK(t, err)
	return a
}

// If the Secret has an authority, only clients with one of its certificates are answered, wherever they are.
func TestClientsWithCertificates(t *testing.T) {
	ours, theirs := authorityOf(t), authorityOf(t)
	cert, err := ours.serving(time.Now(), []string{"x"})
	harness.OK(t, err)
	m := &memory{clients: bundle([]authority{theirs})}
	k := m.keeper(func() bool { return true })
	harness.OK(t, k.keep(t.Context()))
	c := (&cluster{}).clients()
	c.authority = k.clients
	l, err := net.Listen("tcp", "127.0.0.1:0")
	harness.OK(t, err)
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
			leaf, key, err := certificate.Issue(&x509.Certificate{
				Subject: pkix.Name{CommonName: "kube-apiserver"}, NotBefore: time.Now().Add(-certificate.Skew), NotAfter: time.Now().Add(certificate.Skew),
				KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			}, a.cert, a.key)
			harness.OK(t, err)
			with.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}, nil
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
		t.Errorf("request with a certificate of the authority: %v", err)
	}
	if err := ask(); err == nil {
		t.Error("request without a certificate was answered")
	}
	if err := ask(ours); err == nil {
		t.Error("request with a certificate of another authority was answered")
	}
	m.clients = []byte("nonsense")
	if err := k.keep(t.Context()); err == nil {
		t.Error("keep() succeeded with an invalid authority")
	}
	if err := ask(theirs); err == nil {
		t.Error("request was answered although the authority is invalid")
	}
	m.clients = nil
	if err := errors.Join(k.keep(t.Context()), ask()); err != nil {
		t.Errorf("request without a configured authority: %v", err)
	}
}

const limitOfTest = 30 * time.Second
