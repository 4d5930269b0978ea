// Package httpreply is shared by the lab's HTTP services: it sends replies, injects faults, simulates
// broken connections, and logs calls.
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

// Timeouts for the header of a request and for the whole request.
const (
	headerTimeout  = 10 * time.Second
	requestTimeout = 30 * time.Second
)

// Server serves h over HTTP, with a timeout of half a minute to read a request. Errors of net/http are
// logged at the debug level.
func Server(h http.Handler, log slog.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, ReadTimeout: requestTimeout,
		ErrorLog: slog.NewLogLogger(log, slog.LevelDebug),
	}
}

// Refusal returns the body and the media type of a service's reply to a request that net/http refuses as
// invalid. why is net/http's message.
type Refusal func(status int, why string) (mediaType string, body []byte)

// Refusing wraps a listener so that connections reply with the service's own error to invalid HTTP
// requests, which do not reach the handler.
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

// NetConn returns the underlying connection.
func (c *refusingConn) NetConn() net.Conn { return c.Conn }

// CloseWrite lets net/http finish sending before it closes the connection, so that the client can read
// the error.
func (c *refusingConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}

// cannedHeader is the header of net/http's own errors, which it writes in one call. Replies of handlers
// have a date in it.
const cannedHeader = "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"

// Write sends b, or the service's error if b is one of net/http's.
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

// HangUp closes the connection of a request without a reply, as if the service were unreachable or the
// reply got lost.
func HangUp(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "the lab cannot close this connection: "+err.Error(), http.StatusInternalServerError)
		return
	}
	_ = conn.Close()
}

// A reply of up to segment bytes reaches a client in one read. Longer replies are delayed for a moment:
// smithy-go (1.28) closes the request's body as soon as the reply begins, and if net/http has not
// finished with that body, it drops the connection in the middle of the reply. This only happens on a
// loopback interface, because real networks are slower.
const (
	segment = 3 << 10
	moment  = 5 * time.Millisecond
)

// Send writes the body of a successful reply, compressed if the client accepts that and it is worthwhile.
func Send(w http.ResponseWriter, r *http.Request, body []byte) {
	if len(body) > 1<<10 && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write(body) // writes to a buffer cannot fail
		_ = z.Close()
		body = b.Bytes()
		w.Header().Set("Content-Encoding", "gzip")
	}
	if len(body) > segment {
		time.Sleep(moment) //nolint:forbidigo // waits for a client that cannot be watched, see segment
	}
	_, _ = w.Write(body)
}
