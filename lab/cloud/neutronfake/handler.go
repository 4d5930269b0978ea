package neutronfake

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/berthnet/berth/lab/cloud/httpreply"
)

// maxURL is the longest request line's URL that is read, in bytes (eventlet.wsgi, and
// Apache's LimitRequestLine).
const maxURL = 8190

// ServeHTTP serves Keystone below /v3 and Neutron below /v2.0.
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, c.options.MaxBody))
	var f *Fault
	c.set(func() { f = c.fault(r) })
	if f != nil && f.Delay > 0 {
		select {
		case <-c.clock.After(f.Delay):
		case <-r.Context().Done():
		}
	}
	var out reply
	switch tooLarge := (*http.MaxBytesError)(nil); {
	case f != nil && !f.After && (f.HangUp || f.Status != 0):
	case errors.As(err, &tooLarge):
		out = textReply(413, "Request is too large.")
	case err != nil:
		out = textReply(400, "The request cannot be read.")
	case len(r.RequestURI) > maxURL:
		out = textReply(414, "Request-URI Too Long")
	default:
		c.set(func() { out = c.route(r, body) })
	}
	if f != nil {
		out = f.answer(out)
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
	n := 0
	if r.Method == http.MethodPost && r.URL.Path == "/v2.0/ports" {
		list, _, _ := ports(body)
		n = len(list)
	}
	c.set(func() {
		c.calls = append(c.calls, Call{Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Ports: n, Status: status, At: c.clock.Now()})
	})
}

// route answers a call. c.mu is held, as in all below.
func (c *Cloud) route(r *http.Request, body []byte) reply {
	if r.URL.Path == "/v3" || strings.HasPrefix(r.URL.Path, "/v3/") {
		return c.keystone(r, body)
	}
	rest, ok := strings.CutPrefix(r.URL.Path, "/v2.0/")
	if !ok {
		return notFound().reply()
	}
	who, ok := c.caller(r)
	if !ok {
		return unauthenticated()
	}
	collection, id, one := strings.Cut(strings.TrimSuffix(rest, ".json"), "/")
	switch {
	case filters[collection] == nil || one && (id == "" || strings.Contains(id, "/")):
		return notFound().reply()
	case r.Method == http.MethodGet && !one:
		return c.list(r, collection, c.visible(who, collection, r.URL.Query()["id"]))
	case r.Method == http.MethodGet:
		return c.show(r, who, collection, id)
	case collection != "ports":
		return textReply(405, "the lab changes ports only")
	case r.Method == http.MethodPost && !one:
		return c.post(who, body)
	case r.Method == http.MethodPut && one:
		return c.put(r, who, id, body)
	case r.Method == http.MethodDelete && one:
		return c.remove(who, id)
	default:
		return refuse(405, "HTTPMethodNotAllowed", "The method %s is not allowed for this resource. ", r.Method).reply()
	}
}

// visible is what a caller may list of a collection. Ports are by ID where those are
// asked for: clients do so often, and there may be thousands of others.
func (c *Cloud) visible(who caller, collection string, ids []string) (out []map[string]any) {
	switch collection {
	case "ports":
		shown := c.trail.at(c.clock.Now().Add(-c.options.Lag))
		if len(ids) == 0 || slices.Contains(ids, "") {
			ids = slices.Collect(maps.Keys(shown))
		}
		for _, id := range slices.Compact(slices.Sorted(slices.Values(ids))) {
			if p, ok := shown[id]; ok && who.sees(p.Project) {
				out = append(out, p.described(who))
			}
		}
	case "networks":
		for _, n := range c.networks {
			if who.sees(n.Project) || n.Shared {
				out = append(out, c.describedNetwork(n))
			}
		}
	default:
		for _, s := range c.subnets {
			if n := c.networks[s.Network]; who.sees(n.Project) || n.Shared {
				out = append(out, c.describedSubnet(s))
			}
		}
	}
	return out
}

var singular = map[string]string{"ports": "port", "networks": "network", "subnets": "subnet"}

// show describes one thing, as of now.
func (c *Cloud) show(r *http.Request, who caller, collection, id string) reply {
	wanted := r.URL.Query()["fields"]
	if collection == "ports" {
		p, err := c.find(who, id)
		if err != nil {
			return err.reply()
		}
		return jsonReply(200, map[string]any{"port": fields(p.described(who), wanted)})
	}
	for _, o := range c.visible(who, collection, nil) {
		if o["id"] == id {
			return jsonReply(200, map[string]any{singular[collection]: fields(o, wanted)})
		}
	}
	name := strings.ToUpper(collection[:1]) + singular[collection][1:]
	return refuse(404, name+"NotFound", "%s %s could not be found.", name, id).reply()
}

// find is a port that a caller sees.
func (c *Cloud) find(who caller, id string) (*Port, *refusal) {
	p := c.ports[id]
	if p == nil || !who.sees(p.Project) {
		return nil, refuse(404, "PortNotFound", "Port %s could not be found.", id)
	}
	return p, nil
}

func (c *Cloud) post(who caller, body []byte) reply {
	list, bulk, err := ports(body)
	if err != nil {
		return err.reply()
	}
	for _, b := range list {
		if err := who.permits("create_port", b); err != nil {
			return err.reply()
		}
	}
	made, err := c.create(who, list)
	if err != nil {
		return err.reply()
	}
	out := []map[string]any{}
	for i, p := range made {
		out = append(out, c.answered(p, list[i].Host != nil && *list[i].Host != "").described(who))
	}
	if bulk {
		return jsonReply(201, map[string]any{"ports": out})
	}
	return jsonReply(201, map[string]any{"port": out[0]})
}

func (c *Cloud) put(r *http.Request, who caller, id string, body []byte) reply {
	p, err := c.find(who, id)
	if err != nil {
		return err.reply()
	}
	envelope := portEnvelope(body)
	if envelope == nil {
		return badRequest("Unable to find 'port' in request body").reply()
	}
	b, err := port(envelope, "PUT", putAttributes)
	if err != nil {
		return err.reply()
	}
	if err := who.permits("update_port", b); err != nil {
		return err.reply()
	}
	revision := -1
	if h, ok := strings.CutPrefix(r.Header.Get("If-Match"), "revision_number="); ok { // what else it may say is not heeded
		n, err := strconv.Atoi(h)
		if err != nil {
			return refuse(400, "BadRequest", "Bad if-match request: Revision number etag must be in the format of revision_number=<int>.").reply()
		}
		revision = n
	}
	late, err := c.update(p, revision, b)
	if err != nil {
		return err.reply()
	}
	return jsonReply(200, map[string]any{"port": c.answered(p, late).described(who)})
}

func (c *Cloud) remove(who caller, id string) reply {
	p, err := c.find(who, id)
	if err == nil {
		err = who.permits("delete_port", nil)
	}
	if err == nil && strings.HasPrefix(p.Owner, "network:") {
		err = refuse(409, "ServicePortInUse", "Port %s cannot be deleted directly via the port API: has device owner %s.", id, p.Owner)
	}
	if err != nil {
		return err.reply()
	}
	c.drop(id)
	return reply{status: 204}
}
