package alcorfake

import (
	"fmt"
	"net/http"
	"strings"
)

const (
	// maxURL is the maximum length of a URL in bytes (server.max-http-header-size: 16384 in the port manager,
	// Tomcat's default of 8192 in others).
	maxURL = 8192
	// maxBody is the maximum size of a request (Tomcat's maxPostSize).
	maxBody = 2 << 20
)

// route handles a call. The caller must hold the lock, as for all methods below.
func (a *api) route(r *http.Request, body []byte) reply {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if len(parts) < 3 || len(parts) > 4 || parts[0] != "project" {
		return a.refused(r, refuse(404, "No message available"))
	}
	project, collection, id := parts[1], parts[2], ""
	if len(parts) == 4 {
		id = parts[3]
	}
	if (r.Method == http.MethodPost || r.Method == http.MethodPut) && !strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		return a.refused(r, refuse(415, fmt.Sprintf("Content type '%s' not supported", r.Header.Get("Content-Type"))))
	}
	switch collection {
	case "ports":
		return a.portManager(r, project, id, body)
	case "vpcs", "subnets":
		if r.Method != http.MethodGet {
			return a.refused(r, refuse(405, "the lab only changes ports"))
		}
		return a.describe(r, project, collection, id)
	}
	return a.refused(r, refuse(404, "No message available"))
}

// portManager handles calls as the port manager's PortController does.
func (a *api) portManager(r *http.Request, project, id string, body []byte) reply {
	switch {
	case r.Method == http.MethodGet && id == "":
		return jsonReply(200, map[string]any{"ports": a.listed(r.URL.Query())})
	case r.Method == http.MethodGet:
		if p := a.ports.byID[id]; p != nil { // of any project
			return jsonReply(200, map[string]any{"port": a.described(p)})
		}
		return a.refused(r, errPort)
	case r.Method == http.MethodPost && (id == "" || id == "bulk"):
		return a.post(r, project, id == "bulk", body)
	case r.Method == http.MethodPut && id == "bulk":
		return reply{Status: 200} // updatePortBulk returns null
	case r.Method == http.MethodPut && id != "":
		return a.put(r, project, id, body)
	case r.Method == http.MethodDelete && id != "":
		if e := a.remove(id); e != nil {
			return a.refused(r, e)
		}
		return reply{Status: 200}
	}
	return a.refused(r, refuse(405, fmt.Sprintf("Request method '%s' not supported", r.Method)))
}
