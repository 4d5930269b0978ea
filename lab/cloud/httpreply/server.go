package httpreply

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"
)

// How long a client may take to send the header of a request, and all of it.
const (
	headerTimeout  = 10 * time.Second
	requestTimeout = 30 * time.Second
)

// Server serves h over HTTP and reads no request for longer than half a minute.
// What net/http has to complain of goes to log at its debug level.
func Server(h http.Handler, log slog.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, ReadTimeout: requestTimeout,
		ErrorLog: slog.NewLogLogger(log, slog.LevelDebug),
	}
}

// Refusal is the body that a service answers with, and its media type, where
// net/http refuses what is no HTTP request. Why is net/http's own word for it.
type Refusal func(status int, why string) (mediaType string, body []byte)

// Refusing gives a listener's connections a service's own way to refuse what
// is no HTTP request, which no handler gets to see.
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
