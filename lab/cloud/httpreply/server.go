// Package httpreply is what the lab's HTTP services share: how they send replies, how they fail
// below HTTP, the faults that calls meet, and the log of calls.
package httpreply

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The time-outs for the header of a request and for the whole request.
const (
	headerTimeout  = 10 * time.Second
	requestTimeout = 30 * time.Second
)

// Server serves h over HTTP and reads no request for longer than half a minute.
// Errors of net/http go to log at the debug level.
func Server(h http.Handler, log slog.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, ReadTimeout: requestTimeout,
		ErrorLog: slog.NewLogLogger(log, slog.LevelDebug),
	}
}

// Refusal is the body that a service answers with, and its media type, where
// net/http refuses what is no HTTP request. Why is net/http's own word for it.
type Refusal func(status int, why string) (mediaType string, body []byte)

// Refusing makes a listener's connections reply with the service's own refusal to invalid HTTP requests,
// which do not reach the handler.
func Refusing(ln net.Listener, refuse Refusal) net.Listener { return &refusing{ln, refuse} }

type refusing struct {
	net.Listener
	refuse Refusal
}

func (l *refusing) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &refusingConn{c, l.refuse}, nil
}

type refusingConn struct {
	net.Conn
	refuse Refusal
}

// NetConn is the connection below.
func (c *refusingConn) NetConn() net.Conn { return c.Conn }

// CloseWrite lets net/http end what it sends before it closes the connection,
// so that the client can read a refusal.
func (c *refusingConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}

// cannedHeader is the header of net/http's own refusals, which it writes at
// once. A handler's reply has a date in it.
const cannedHeader = "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"

// Write sends b, or the service's refusal when b is one of net/http's.
func (c *refusingConn) Write(b []byte) (int, error) {
	line, why, ok := bytes.Cut(b, []byte(cannedHeader))
	rest, isStatus := bytes.CutPrefix(line, []byte("HTTP/1.1 "))
	if !ok || !isStatus || len(rest) < 3 || bytes.Contains(line, []byte("\r\n")) {
		return c.Conn.Write(b)
	}
	status, err := strconv.Atoi(string(rest[:3]))
	if err != nil {
		return c.Conn.Write(b)
	}
	mediaType, body := c.refuse(status, string(why))
	page := fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		status, http.StatusText(status), mediaType, len(body), body)
	if _, err := c.Conn.Write([]byte(page)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// HangUp closes the connection of a request without any reply, which is what
// a client sees of an unreachable service or of a reply lost on its way.
func HangUp(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "the lab cannot close this connection: "+err.Error(), http.StatusInternalServerError)
		return
	}
	_ = conn.Close()
}

// A reply of up to segment bytes reaches a client in one read. Longer ones are
// held back for a moment: smithy-go (1.28) closes the request's body as soon
// as the reply begins, and if net/http is not quite done with that body it
// drops the connection in the middle of the reply. Real networks are never as
// fast as a loopback interface, so only a lab meets this.
const (
	segment = 3 << 10
	moment  = 5 * time.Millisecond
)

// Send writes the body of a successful reply, compressed where the client
// takes that and it pays.
func Send(w http.ResponseWriter, r *http.Request, body []byte) {
	if len(body) > 1<<10 && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write(body) // a buffer takes everything
		_ = z.Close()
		body = b.Bytes()
		w.Header().Set("Content-Encoding", "gzip")
	}
	if len(body) > segment {
		time.Sleep(moment) //nolint:forbidigo // waits for a client that cannot be watched, see segment
	}
	_, _ = w.Write(body)
}
