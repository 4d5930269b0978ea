package alcorfake

import (
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/berthnet/berth/lab/cloud/httpreply"
)

const (
	// maxURL is the longest URL that is read, in bytes (server.max-http-header-size is
	// 16384 in the port manager, and Tomcat's 8192 in others).
	maxURL = 8192
	// maxBody is the longest request (Tomcat's maxPostSize).
	maxBody = 2 << 20
)

// ServeHTTP serves the managers below /project, as Alcor's API gateway does.
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var f *Fault
	c.set(func() { f = c.fault(r) })
	if f != nil && f.Delay > 0 {
		select {
		case <-c.clock.After(f.Delay):
		case <-r.Context().Done():
		}
	}
	var out reply
	switch {
	case f != nil && !f.After && (f.HangUp || f.Status != 0):
	case err != nil:
		out = c.refused(r, refuse(413, "Maximum upload size exceeded"))
	case len(r.RequestURI) > maxURL:
		out = reply{400, nil, nil} // Tomcat: Request header is too large
	default:
		c.set(func() { out = c.route(r, body) })
	}
	if f != nil {
		out = c.answer(f, r, out)
		if f.HangUp {
			c.note(r, body, 0)
			httpreply.HangUp(w)
			return
		}
	}
	c.note(r, body, out.status)
	for name, value := range out.header {
		w.Header().Set(name, value)
	}
	w.WriteHeader(out.status)
	_, _ = w.Write(out.body)
}

// note writes a call down.
func (c *Cloud) note(r *http.Request, body []byte, status int) {
	c.set(func() {
		c.calls = append(c.calls, Call{Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Body: string(body), Status: status})
	})
}

// route answers a call. c.mu is held, as in all below.
func (c *Cloud) route(r *http.Request, body []byte) reply {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if len(parts) < 3 || len(parts) > 4 || parts[0] != "project" {
		return c.refused(r, refuse(404, "No message available"))
	}
	project, collection, id := parts[1], parts[2], ""
	if len(parts) == 4 {
		id = parts[3]
	}
	if (r.Method == http.MethodPost || r.Method == http.MethodPut) && !strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		return c.refused(r, refuse(415, fmt.Sprintf("Content type '%s' not supported", r.Header.Get("Content-Type"))))
	}
	switch collection {
	case "ports":
		return c.portManager(r, project, id, body)
	case "vpcs", "subnets":
		if r.Method != http.MethodGet {
			return c.refused(r, refuse(405, "the lab changes ports only"))
		}
		return c.describe(r, project, collection, id)
	}
	return c.refused(r, refuse(404, "No message available"))
}

// portManager answers by the port manager's PortController.
func (c *Cloud) portManager(r *http.Request, project, id string, body []byte) reply {
	switch {
	case r.Method == http.MethodGet && id == "":
		return jsonReply(200, map[string]any{"ports": c.listed(r.URL.Query())})
	case r.Method == http.MethodGet:
		if p := c.ports[id]; p != nil { // of any project
			return jsonReply(200, map[string]any{"port": c.described(p)})
		}
		return c.refused(r, errPort)
	case r.Method == http.MethodPost && (id == "" || id == "bulk"):
		return c.post(r, project, id == "bulk", body)
	case r.Method == http.MethodPut && id == "bulk":
		return reply{status: 200} // updatePortBulk returns null
	case r.Method == http.MethodPut && id != "":
		return c.put(r, project, id, body)
	case r.Method == http.MethodDelete && id != "":
		if e := c.remove(id); e != nil {
			return c.refused(r, e)
		}
		return reply{status: 200}
	}
	return c.refused(r, refuse(405, fmt.Sprintf("Request method '%s' not supported", r.Method)))
}
