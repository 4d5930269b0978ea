package networkpolicy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berthnet/berth/internal/policy/wire"
)

// Access finds the leading operator, and authenticates the node to it.
type Access struct {
	Namespace string // of the ConfigMap
	// ConfigMap reads the data of a ConfigMap.
	ConfigMap func(ctx context.Context, namespace, name string) (map[string]string, error)
	TokenFile string
}

const (
	// largestPart is the maximum size of a message in bytes. One part of an update contains all policies of the node's pods.
	largestPart = 16 << 20
	// A connection that is idle for pingAfter is probed, and closed if no answer arrives within pingTimeout.
	pingAfter, pingTimeout = 10 * time.Second, 5 * time.Second
	// connectTimeout limits the time until the TLS handshake is done. A hung operator still accepts connections, while another
	// one may already lead.
	connectTimeout = 5 * time.Second
	// window is the flow control window in bytes. It is fixed, because otherwise gRPC sends a ping after each message to measure
	// the connection, which delays the messages that starting pods wait for.
	window = 1 << 20
)

// Dial implements Dialer. It reads the ConfigMap each time, because another operator may have become the leader.
func (a Access) Dial(ctx context.Context) (Leader, error) {
	data, err := a.read(ctx)
	if err != nil {
		return Leader{}, err
	}
	address, roots, err := a.operator(data)
	if err != nil {
		return Leader{}, err
	}
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: wire.ServerName, MinVersion: tls.VersionTLS13})),
		grpc.WithPerRPCCredentials(tokenFile(a.TokenFile)), grpc.WithNoProxy(),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largestPart)))
	if err != nil {
		return Leader{}, fmt.Errorf("berth-operator at %s: %w", address, err)
	}
	return Leader{wire.NewPoliciesClient(conn), func() { _ = conn.Close() }, func(ctx context.Context) bool {
		now, err := a.read(ctx)
		return err == nil && now[wire.KeyAddress] != "" && !maps.Equal(now, data)
	}}, nil
}

// object names the ConfigMap in errors.
func (a Access) object() string {
	return fmt.Sprintf("ConfigMap %s/%s", a.Namespace, wire.ConfigMapName)
}

// read reads the ConfigMap.
func (a Access) read(ctx context.Context) (map[string]string, error) {
	data, err := a.ConfigMap(ctx, a.Namespace, wire.ConfigMapName)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%s does not exist: berth-operator creates it, with --network-policies", a.object())
	case err != nil:
		return nil, fmt.Errorf("%s: %w", a.object(), err)
	}
	return data, nil
}

// operator returns the address of the operator, and the authority that signed its certificate.
func (a Access) operator(data map[string]string) (address string, roots *x509.CertPool, err error) {
	if data[wire.KeyAddress] == "" {
		return "", nil, fmt.Errorf("%s has no %s: no berth-operator leads yet", a.object(), wire.KeyAddress)
	}
	roots = x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(data[wire.KeyCA])) {
		return "", nil, fmt.Errorf("%s: %s has no certificate, expected PEM", a.object(), wire.KeyCA)
	}
	return data[wire.KeyAddress], roots, nil
}

// tokenFile is the path of the token. It is read for each call, because the kubelet replaces the file.
type tokenFile string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (f tokenFile) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := os.ReadFile(string(f))
	if err != nil {
		return nil, fmt.Errorf("the token for berth-operator: %w", err)
	}
	return map[string]string{"authorization": "Bearer " + strings.TrimSpace(string(token))}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (tokenFile) RequireTransportSecurity() bool { return true }
