package ec2api

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/lab/cloud/httpreply"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

// pipes is a listener for in-memory connections.
type pipes struct {
	accept chan net.Conn
	done   chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accept:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error   { close(p.done); return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{} }

// A client that stalls in the middle of a body gets an error after half a minute.
func TestSlowBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud, err := vpc.New(spec.Default())
		if err != nil {
			t.Fatal(err)
		}
		defer cloud.Close()
		ln := pipes{make(chan net.Conn), make(chan struct{})}
		srv := httpreply.Server(Handler(cloud), slog.DiscardHandler)
		go func() { _ = srv.Serve(ln) }()
		defer srv.Close()
		ours, theirs := net.Pipe()
		defer ours.Close()
		ln.accept <- theirs
		began := time.Now()
		if _, err := io.WriteString(ours, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nAction="); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Hour, func() { _ = ours.Close() })
		resp, err := http.ReadResponse(bufio.NewReader(ours), nil)
		if err != nil {
			t.Fatalf("no reply after %v: %v", time.Since(began), err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if took := time.Since(began); err != nil || took > time.Minute || resp.StatusCode != http.StatusRequestTimeout || !strings.Contains(string(body), "<Code>RequestTimeout</Code>") {
			t.Errorf("reply after %v = %s %s, %v; want RequestTimeout within a minute", took, resp.Status, body, err)
		}
	})
}
