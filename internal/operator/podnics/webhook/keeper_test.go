package webhook

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/clock"
)

// memory is a store whose API server hears of authorities a while later.
type memory struct {
	lag time.Duration
	mu  sync.Mutex // guards the rest

	certs, keys []byte
	clients     []byte // the authority of their certificates
	version     int
	trusted     []byte // by the API server
	fail        error  // of every call
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

// accepts is nil if the API server would take what a keeper serves with.
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

// For four years there is no moment at which the API server would not take what either
// of two operators serves with: while authorities and certificates come and go, the
// lead changes, and the API server hears of it late.
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
					t.Fatalf("after %v operator %d is not trusted: %v", time.Since(begin), i, err)
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
		// One to begin with, and another every eight months.
		if m.writes < 6 || m.writes > 14 || len(authorities) < 6 {
			t.Errorf("%d writes, %d authorities signed", m.writes, len(authorities))
		}
	})
}

func TestAuthoritiesAreMadeByWhoLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		k := m.keeper(func() bool { return false })
		if err := k.keep(t.Context()); err == nil || m.writes != 0 {
			t.Errorf("one that stands by: %v, %d writes", err, m.writes)
		}
		if _, err := k.certificate(nil); err == nil {
			t.Error("it serves without a certificate")
		}
		leads := m.keeper(func() bool { return true })
		for what, spoil := range map[string]func(){
			"nothing":        func() { m.certs, m.keys = nil, nil },
			"no certificate": func() { m.certs, m.keys = []byte("a"), []byte("b") },
			"half of it":     func() { m.keys = nil },
			"another's key": func() {
				other, err := newAuthority(time.Now())
				if err != nil {
					t.Fatal(err)
				}
				m.keys, _ = keys([]authority{other})
			},
		} {
			spoil()
			if err := leads.keep(t.Context()); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			synctest.Wait()
			if err := errors.Join(k.keep(t.Context()), m.accepts(k), m.accepts(leads)); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		writes := m.writes
		if err := leads.keep(t.Context()); err != nil || m.writes != writes {
			t.Errorf("again: %v, %d writes", err, m.writes-writes)
		}
		m.fail = errors.New("the API server is away")
		if err := leads.keep(t.Context()); err == nil {
			t.Error("no error")
		}
		if err := m.accepts(leads); err != nil {
			t.Errorf("while the API server is away: %v", err)
		}
	})
}

// told is a log that is read while others write to it.
type told struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *told) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// count is how often a text is in it.
func (l *told) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// That the Secret is empty is no news while an operator may be about to lead; that it stays
// so is, once. All else is told at once.
func TestAnEmptySecretIsToldOnceItLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		log := &told{}
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
				t.Errorf("after %v more: %d lines, want %d", step.after, n, step.lines)
			}
		}
		m.mu.Lock()
		m.fail = errors.New("the API server is away")
		m.mu.Unlock()
		time.Sleep(lookFirst) //nolint:forbidigo // inside a synctest bubble
		synctest.Wait()
		if n := log.count("is away"); n != 1 {
			t.Errorf("that the API server is away was told %d times", n)
		}
	})
}
