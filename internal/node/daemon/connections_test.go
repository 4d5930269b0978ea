package daemon

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/internal/rpc/unary"
	"github.com/berthnet/berth/internal/web"
	"github.com/berthnet/berth/internal/web/webtest"
)

// Programs on the node that connect and send nothing do not lock the plugin out.
func TestSilentConnectionsGiveWayToThePlugin(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	r := n.restart(nil)
	var silent []net.Conn
	for range 2 * pluginConnections {
		c, err := net.Dial("unix", r.socket)
		must(t, err)
		t.Cleanup(func() { _ = c.Close() })
		silent = append(silent, c)
	}
	mustAdd(t, r, "a", n.newNetns("a"))
	if _, err := r.client.Status(within(t), &rpc.StatusRequest{}); err != nil {
		t.Error(err)
	}
	open := 0
	for _, c := range silent {
		if isOpen(t, c) {
			open++
		}
	}
	if open >= pluginConnections {
		t.Errorf("%d silent connections are open", open)
	}
}

// At least half of a program's usual descriptors stay free for its work.
func TestListenersLeaveDescriptors(t *testing.T) {
	if n := pluginConnections + 2*web.Connections; n > 1024/2 {
		t.Errorf("the listeners take up to %d connections", n)
	}
}

// Pods that hold connections to a metrics port at the node's address cannot block scrapes from the
// node itself.
func TestAttacksOnMetrics(t *testing.T) {
	node, scraper := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.1.0.5")
	d := newNode(t, "10.0.0.5").assemble()
	webtest.Try(t, func(*testing.T) webtest.Server {
		f := &Front{FrontOptions: FrontOptions{Metrics: d.Metrics, Clock: d.Clock, Log: d.Log}, ready: make(chan struct{})}
		return webtest.Server{
			At: node, Slow: "/startupz", Path: "/metrics", Honest: []netip.Addr{node, scraper},
			Serve: func(ctx context.Context, l net.Listener) error {
				return web.Serve(ctx, l, f.monitoringHandler(), web.Options{})
			},
		}
	})
}

// isOpen reports whether the other side has not closed a silent connection.
func isOpen(t *testing.T, c net.Conn) (open bool) {
	t.Helper()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
			open = errors.Is(err, unix.EAGAIN)
		})
	}
	must(t, err)
	return open
}

// held opens connections of the plugin and sends the same on each, until the test ends.
func held(t *testing.T, r *running, many int, frames []byte) {
	t.Helper()
	for range many {
		c, err := net.Dial("unix", r.socket)
		must(t, err)
		t.Cleanup(func() { _ = c.Close() })
		if _, err := c.Write(frames); err != nil && !errors.Is(err, unix.EPIPE) {
			t.Fatal(err)
		}
	}
}

// callAlone makes a call as the plugin does, on its own connection.
func callAlone(ctx context.Context, r *running, verb string, message proto.Message) error {
	data, err := proto.Marshal(message)
	if err != nil {
		return err
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", r.socket)
	if err != nil {
		return err
	}
	_, err = unary.Call(ctx, conn, "/"+rpc.Node_ServiceDesc.ServiceName+"/"+verb, data)
	return err
}

// A client that starts a connection or a call and stops locks the plugin out no longer than its STATUS
// waits.
func TestUnfinishedCallsGiveWay(t *testing.T) {
	var preface, call bytes.Buffer
	preface.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&preface, nil)
	must(t, framer.WriteSettings())
	call.Write(preface.Bytes())
	framer = http2.NewFramer(&call, nil)
	var block bytes.Buffer
	headers := hpack.NewEncoder(&block)
	for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", "/" + rpc.Node_ServiceDesc.ServiceName + "/Status"},
		{":authority", "localhost"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
		must(t, headers.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}))
	}
	must(t, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true}))
	for what, frames := range map[string][]byte{
		"one byte": []byte("P"), "preface": preface.Bytes(), "a call without its message": call.Bytes(),
		"not HTTP/2": []byte("GET /ip-manager HTTP/1.1\r\n\r\n"),
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel() // each waits for pluginOpening
			r := newNode(t, "10.0.0.5").restart(nil)
			held(t, r, pluginConnections+10, frames)
			if err := callAlone(within(t), r, "Status", &rpc.StatusRequest{}); err != nil {
				t.Error(err)
			}
		})
	}
}
