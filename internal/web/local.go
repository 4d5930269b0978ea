package web

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
)

// OnLoopback tells whether a listener is at a loopback address, where Serve answers
// this machine's programs only. A nil listener is not.
func OnLoopback(l net.Listener) bool {
	if l == nil {
		return false
	}
	tcp, ok := l.Addr().(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// LocalOnly refuses requests for another host's name: a web page that a person on this
// machine looks at must not read what is for this machine through a name that its
// owner resolves to 127.0.0.1.
func LocalOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLocalHost(r.Host) {
			http.Error(w, fmt.Sprintf("host %q is not this machine's loopback address", r.Host), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func isLocalHost(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	} else if len(host) > 2 && host[0] == '[' && host[len(host)-1] == ']' {
		host = host[1 : len(host)-1]
	}
	if host == "localhost" || host == "localhost." {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

// WriteJSON answers with a value, for programs and for people.
func WriteJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // the reader went away
}
