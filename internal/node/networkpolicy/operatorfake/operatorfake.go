// Package operatorfake is an operator on a loopback address that sends network policies to nodes, with TLS and tokens like the
// real one. A token is the name of its node.
package operatorfake

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/operator/certificate"
	operator "github.com/berthnet/berth/internal/operator/networkpolicy"
	"github.com/berthnet/berth/internal/operator/networkpolicy/feed"
	"github.com/berthnet/berth/internal/policy/wire"
)

// Operator is an operator. The zero value is an operator that was never started.
type Operator struct {
	t testing.TB

	mu     sync.Mutex // guards below
	data   map[string]string
	err    error // of ConfigMap
	server *grpc.Server
}

// New returns an operator that does not run.
func New(t testing.TB) *Operator {
	o := &Operator{t: t}
	t.Cleanup(o.Stop)
	return o
}

// Start starts the operator with the content of a feed, at a new address and with a new certificate.
func (o *Operator) Start(f *feed.Feed) {
	o.t.Helper()
	serving, err := certificate.Serving(&x509.Certificate{DNSNames: []string{wire.ServerName}}, time.Now(), nil, nil)
	if err != nil {
		o.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		o.t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{*serving}, MinVersion: tls.VersionTLS13})))
	wire.RegisterPoliciesServer(server, operator.NewServer(operator.Server{
		Feed: f,
		Node: func(_ context.Context, token string) (string, error) {
			if token == "" {
				return "", errors.New("no token")
			}
			return token, nil
		},
		MayAssign: func(context.Context, string, types.NamespacedName, []netip.Addr) (bool, error) { return false, nil },
		Serves:    func() error { return nil },
		Clock:     clock.Real{}, Log: slog.New(slog.DiscardHandler),
	}))
	go func() { _ = server.Serve(l) }()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.server, o.data = server, map[string]string{wire.KeyAddress: l.Addr().String(), wire.KeyCA: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: serving.Leaf.Raw}))}
}

// Stop stops the operator. The ConfigMap stays.
func (o *Operator) Stop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.server != nil {
		o.server.Stop()
	}
}

// Set changes a key of the ConfigMap.
func (o *Operator) Set(key, value string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.data[key] = value
}

// Fail makes the API server answer with an error.
func (o *Operator) Fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = err
}

// ConfigMap reads the ConfigMap, for networkpolicy.Access.
func (o *Operator) ConfigMap(_ context.Context, namespace, name string) (map[string]string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return nil, o.err
	}
	if namespace != "kube-system" || name != wire.ConfigMapName || o.data == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, name)
	}
	out := map[string]string{}
	for k, v := range o.data {
		out[k] = v
	}
	return out, nil
}
