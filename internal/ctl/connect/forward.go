package connect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

// Dialer opens a connection to a port on localhost in a pod's network namespace.
type Dialer func(ctx context.Context, pod *corev1.Pod, port uint16) (net.Conn, error)

// Client returns an HTTP client for a pod's port. It opens a new connection for every
// request. Requests must use localhost as their host.
func (d Dialer) Client(pod *corev1.Pod, port uint16) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return d(ctx, pod, port) },
	}}
}

// Forwarder returns a Dialer that uses the portforward subresource of pods: the kubelet
// connects to the port inside the pod's network namespace, which is the node's for a
// host-network pod. Daemons can therefore listen on loopback addresses only, and RBAC
// controls who reaches them. No local port is opened.
func Forwarder(cfg *rest.Config) (Dialer, error) {
	cfg = rest.CopyConfig(cfg)
	transport, upgrader, err := spdy.RoundTripperFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a client for port forwarding: %w", err)
	}
	server, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("the API server's address: %w", err)
	}
	return func(ctx context.Context, pod *corev1.Pod, port uint16) (net.Conn, error) {
		url := server.JoinPath("api/v1/namespaces", url.PathEscape(pod.Namespace), "pods", url.PathEscape(pod.Name), "portforward")
		// Like kubectl: WebSocket first, then SPDY if the server or a proxy does not support it.
		web, err := portforward.NewSPDYOverWebsocketDialerForStreaming(url, cfg)
		if err != nil {
			return nil, err
		}
		old := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
		both := portforward.NewFallbackDialerForStreaming(web, old, func(err error) bool {
			return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
		})
		streams, err := dialWithin(ctx, both)
		if err != nil {
			return nil, refusalOf(err)
		}
		return openStream(streams, port)
	}, nil
}

// dialWithin dials until ctx ends. The library's Dial takes no context.
func dialWithin(ctx context.Context, d httpstream.Dialer) (httpstream.Connection, error) {
	type result struct {
		conn httpstream.Connection
		err  error
	}
	done := make(chan result, 1)
	go func() {
		conn, _, err := d.Dial(portforward.PortForwardProtocolV1Name)
		done <- result{conn, err}
	}()
	select {
	case r := <-done:
		return r.conn, r.err
	case <-ctx.Done():
		go func() { // close a connection that arrives too late
			if r := <-done; r.conn != nil {
				_ = r.conn.Close()
			}
		}()
		return nil, context.Cause(ctx)
	}
}

// refusalOf returns the API server's message from an error of the upgrade, if there is one.
func refusalOf(err error) error {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return fmt.Errorf("port forwarding: %s", status.Status().Message)
	}
	return fmt.Errorf("port forwarding: %w", err)
}

// openStream opens one connection to the port. In the protocol portforward.k8s.io each
// connection has an error stream and a data stream.
func openStream(streams httpstream.Connection, port uint16) (net.Conn, error) {
	headers := http.Header{}
	headers.Set(corev1.PortHeader, strconv.Itoa(int(port)))
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	failed, err := streams.CreateStream(headers)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the stream of errors: %w", err), streams.Close())
	}
	_ = failed.Close() // nothing is written to it
	c := &forwarded{streams: streams, decided: make(chan struct{})}
	go c.listen(failed)
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	if c.Stream, err = streams.CreateStream(headers); err != nil {
		err = c.because(err)
		return nil, errors.Join(fmt.Errorf("port forwarding: %w", err), streams.Close())
	}
	return c, nil
}

// maxRefusal bounds the kubelet's error message, in bytes.
const maxRefusal = 4 << 10

// forwarded is a net.Conn over a data stream.
type forwarded struct {
	httpstream.Stream
	streams httpstream.Connection
	once    sync.Once
	decided chan struct{} // closed when refusal is set
	refusal error         // of the kubelet, such as that nobody listens there
}

// listen reads the kubelet's error from the error stream.
func (c *forwarded) listen(failed io.Reader) {
	text, _ := io.ReadAll(io.LimitReader(failed, maxRefusal))
	if len(text) > 0 {
		c.refusal = errors.New(string(text))
	}
	close(c.decided)
}

// Read returns the kubelet's error instead of an early EOF.
func (c *forwarded) Read(b []byte) (int, error) {
	n, err := c.Stream.Read(b)
	if err == nil || n > 0 {
		return n, err
	}
	return n, c.because(err)
}

// because returns the kubelet's error, or err if there is none.
func (c *forwarded) because(err error) error {
	select {
	case <-c.decided:
		return cmp.Or(c.refusal, err)
	case <-time.After(refusalPatience):
		return err
	}
}

// refusalPatience is how long to wait for the kubelet's error after the data stream ended.
const refusalPatience = time.Second

// Close also closes the underlying connection, which carries no other stream.
func (c *forwarded) Close() (err error) {
	c.once.Do(func() {
		_ = c.Stream.Reset()
		err = c.streams.Close()
	})
	return err
}

type noAddr struct{}

func (noAddr) Network() string { return "portforward" }
func (noAddr) String() string  { return "portforward" }

// Deadlines are not supported: the HTTP client closes the connection when its request ends.
func (c *forwarded) LocalAddr() net.Addr              { return noAddr{} }
func (c *forwarded) RemoteAddr() net.Addr             { return noAddr{} }
func (c *forwarded) SetDeadline(time.Time) error      { return nil }
func (c *forwarded) SetReadDeadline(time.Time) error  { return nil }
func (c *forwarded) SetWriteDeadline(time.Time) error { return nil }
