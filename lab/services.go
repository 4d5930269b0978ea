package lab

import (
	"bufio"
	"bytes"
	"net"
	"net/http"
	"net/netip"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/cloud/ec2api"
	"github.com/berthnet/berth/lab/cloud/httpreply"
	"github.com/berthnet/berth/lab/cloud/imds"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/fabric"
)

// EC2URL is the EC2 API's endpoint for nodes with IPv4, EC2URL6 the one for IPv6-only nodes.
var (
	EC2URL  = "http://" + fabric.EC2Endpoint.String()
	EC2URL6 = "http://[" + fabric.EC2Endpoint6.String() + "]"
)

// serve opens the cloud's services in the router's namespace, and the echo servers outside.
func (b builder) serve() error {
	l := b.lab
	metadata, api := imds.Handler(l.Cloud, func(r *http.Request) (string, bool) {
		return l.Cloud.Snapshot().OwnerOf(r.RemoteAddr) // by its source address, which the fabric has checked
	}), afterFollowing(l, ec2api.Handler(l.Cloud))
	for _, s := range []struct {
		at netip.Addr
		h  http.Handler
	}{
		{fabric.EC2Endpoint, api},
		{fabric.EC2Endpoint6, api},
		{fabric.IMDSEndpoint, metadata},
		{fabric.IMDSEndpoint6, metadata},
	} {
		ln, err := ns.Listen(l.Fabric.RouterPath(), netip.AddrPortFrom(s.at, 80))
		if err != nil {
			return err
		}
		if s.at == fabric.EC2Endpoint || s.at == fabric.EC2Endpoint6 {
			ln = httpreply.Refusing(ln, ec2api.Refusal)
		}
		srv := httpreply.Server(s.h, l.Log.Handler())
		// A connection that ends by a reset leaves no state that would
		// keep the namespace.
		srv.ConnState = func(c net.Conn, state http.ConnState) {
			if w, ok := c.(interface{ NetConn() net.Conn }); ok {
				c = w.NetConn()
			}
			if t, ok := c.(*net.TCPConn); ok && state == http.StateNew {
				_ = t.SetLinger(0)
			}
		}
		l.services = append(l.services, srv)
		go func() { _ = srv.Serve(ln) }()
	}
	for _, path := range []string{l.Fabric.InternetPath(), l.Fabric.OnPremPath()} {
		e, err := echo.Serve(path)
		if err != nil {
			return err
		}
		l.services = append(l.services, e)
	}
	return nil
}

// afterFollowing delays answers until the fabric has applied the events before them: an address is routed once EC2
// says that it is assigned.
func afterFollowing(l *Lab, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		held := &heldReply{ResponseWriter: w, status: http.StatusOK}
		h.ServeHTTP(held, r)
		if held.hungUp { // a lost reply
			return
		}
		l.WaitEvents()
		w.WriteHeader(held.status)
		_, _ = w.Write(held.body.Bytes())
	})
}

// heldReply is a delayed answer.
type heldReply struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
	hungUp bool
}

func (h *heldReply) WriteHeader(status int)      { h.status = status }
func (h *heldReply) Write(b []byte) (int, error) { return h.body.Write(b) }

// Hijack implements http.Hijacker, by which the cloud hangs up.
func (h *heldReply) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	h.hungUp = true
	return http.NewResponseController(h.ResponseWriter).Hijack()
}
