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

// Dialer opens a connection to a port at the loopback address of a pod's node.
type Dialer func(ctx context.Context, pod *corev1.Pod, port uint16) (net.Conn, error)

// Client makes one HTTP request after another to a pod's port, each on a connection of
// its own. Requests name localhost as their host.
func (d Dialer) Client(pod *corev1.Pod, port uint16) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return d(ctx, pod, port) },
	}}
}

// Forwarder dials by the portforward subresource of pods: the API server asks
// the kubelet, which connects to the port inside the pod's network namespace, and
// that of a pod on the host's network is its node's. So a daemon listens at
// loopback addresses only, and Kubernetes says who may ask it. No port is
// opened here.
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
		// As kubectl: by WebSocket, or by SPDY where the server or a proxy has only that.
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

// dialWithin dials until ctx ends, which the library's own dialling does not know.
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
		go func() { // it comes too late
			if r := <-done; r.conn != nil {
				_ = r.conn.Close()
			}
		}()
		return nil, context.Cause(ctx)
	}
}

// refusalOf is the API server's own answer in an error of the upgrade, where it
// is one.
func refusalOf(err error) error {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return fmt.Errorf("port forwarding: %s", status.Status().Message)
	}
	return fmt.Errorf("port forwarding: %w", err)
}

// openStream opens one connection to the port (the protocol
// portforward.k8s.io: an error and a data stream for each).
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
	c := &forwarded{streams: streams, told: make(chan struct{})}
	go c.listen(failed)
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	if c.Stream, err = streams.CreateStream(headers); err != nil {
		err = c.because(err)
		return nil, errors.Join(fmt.Errorf("port forwarding: %w", err), streams.Close())
	}
	return c, nil
}

// maxRefusal bounds what a kubelet says of why it does not forward.
const maxRefusal = 4 << 10

// forwarded is a stream as a connection.
type forwarded struct {
	httpstream.Stream
	streams httpstream.Connection
	once    sync.Once
	told    chan struct{} // closed when refusal is set
	refusal error         // of the kubelet, such as that nobody listens there
}

// listen hears why the kubelet does not forward.
func (c *forwarded) listen(failed io.Reader) {
	text, _ := io.ReadAll(io.LimitReader(failed, maxRefusal))
	if len(text) > 0 {
		c.refusal = errors.New(string(text))
	}
	close(c.told)
}

// Read returns the kubelet's refusal in place of an early end.
func (c *forwarded) Read(b []byte) (int, error) {
	n, err := c.Stream.Read(b)
	if err == nil || n > 0 {
		return n, err
	}
	return n, c.because(err)
}

// because is the kubelet's refusal where there is one, or else err.
func (c *forwarded) because(err error) error {
	select {
	case <-c.told:
		return cmp.Or(c.refusal, err)
	case <-time.After(refusalPatience):
		return err
	}
}

// refusalPatience is for what a kubelet says after it closed the data.
const refusalPatience = time.Second

// Close ends the whole connection, which carries nothing else.
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

// What net.Conn has besides. Deadlines are those of the request, whose end
// closes the connection.
func (c *forwarded) LocalAddr() net.Addr              { return noAddr{} }
func (c *forwarded) RemoteAddr() net.Addr             { return noAddr{} }
func (c *forwarded) SetDeadline(time.Time) error      { return nil }
func (c *forwarded) SetReadDeadline(time.Time) error  { return nil }
func (c *forwarded) SetWriteDeadline(time.Time) error { return nil }
