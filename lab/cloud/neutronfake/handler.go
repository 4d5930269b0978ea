package neutronfake

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// maxURL is the maximum length of a URL in bytes (eventlet.wsgi, and Apache's LimitRequestLine).
const maxURL = 8190

// route handles a call. The caller must hold the lock, as for all methods below.
func (a *api) route(r *http.Request, body []byte) reply {
	if r.URL.Path == "/v3" || strings.HasPrefix(r.URL.Path, "/v3/") {
		return a.keystone.serve(r, body)
	}
	rest, ok := strings.CutPrefix(r.URL.Path, "/v2.0/")
	if !ok {
		return notFound().reply()
	}
	who, ok := a.keystone.caller(r)
	if !ok {
		return unauthenticated()
	}
	collection, id, one := strings.Cut(strings.TrimSuffix(rest, ".json"), "/")
	switch {
	case filters[collection] == nil || one && (id == "" || strings.Contains(id, "/")):
		return notFound().reply()
	case r.Method == http.MethodGet && !one:
		return a.list(r, collection, a.visible(who, collection, r.URL.Query()["id"]))
	case r.Method == http.MethodGet:
		return a.show(r, who, collection, id)
	case collection != "ports":
		return textReply(405, "the lab only changes ports")
	case r.Method == http.MethodPost && !one:
		return a.post(who, body)
	case r.Method == http.MethodPut && one:
		return a.put(r, who, id, body)
	case r.Method == http.MethodDelete && one:
		return a.remove(who, id)
	default:
		return refuse(405, "HTTPMethodNotAllowed", "The method %s is not allowed for this resource. ", r.Method).reply()
	}
}

// visible returns the part of a collection that a caller may list. It looks ports up by ID if the request
// has IDs, because there may be thousands of ports.
func (a *api) visible(who caller, collection string, ids []string) (out []map[string]any) {
	switch collection {
	case "ports":
		shown := a.ports.trail.at(a.clock.Now().Add(-a.options.Lag))
		if len(ids) == 0 || slices.Contains(ids, "") {
			ids = slices.Collect(maps.Keys(shown))
		}
		for _, id := range slices.Compact(slices.Sorted(slices.Values(ids))) {
			if p, ok := shown[id]; ok && who.sees(p.Project) {
				out = append(out, p.described(who))
			}
		}
	case "networks":
		for _, n := range a.networks.byID {
			if who.sees(n.Project) || n.Shared {
				out = append(out, a.describedNetwork(n))
			}
		}
	default:
		for _, s := range a.networks.subnets {
			if n := a.networks.byID[s.Network]; who.sees(n.Project) || n.Shared {
				out = append(out, a.describedSubnet(s))
			}
		}
	}
	return out
}

var singular = map[string]string{"ports": "port", "networks": "network", "subnets": "subnet"}

// show describes one resource in its current state.
func (a *api) show(r *http.Request, who caller, collection, id string) reply {
	wanted := r.URL.Query()["fields"]
	if collection == "ports" {
		p, err := a.find(who, id)
		if err != nil {
			return err.reply()
		}
		return jsonReply(200, map[string]any{"port": fields(p.described(who), wanted)})
	}
	for _, o := range a.visible(who, collection, nil) {
		if o["id"] == id {
			return jsonReply(200, map[string]any{singular[collection]: fields(o, wanted)})
		}
	}
	name := strings.ToUpper(collection[:1]) + singular[collection][1:]
	return refuse(404, name+"NotFound", "%s %s could not be found.", name, id).reply()
}

// find returns a port that the caller may see.
func (a *api) find(who caller, id string) (*Port, *refusal) {
	p := a.ports.byID[id]
	if p == nil || !who.sees(p.Project) {
		return nil, refuse(404, "PortNotFound", "Port %s could not be found.", id)
	}
	return p, nil
}

func (a *api) post(who caller, body []byte) reply {
	list, bulk, err := portsOf(body)
	if err != nil {
		return err.reply()
	}
	for _, b := range list {
		if err := who.permits("create_port", b); err != nil {
			return err.reply()
		}
	}
	made, err := a.create(who, list)
	if err != nil {
		return err.reply()
	}
	out := []map[string]any{}
	for i, p := range made {
		out = append(out, a.hosts.answered(p, list[i].Host != nil && *list[i].Host != "").described(who))
	}
	if bulk {
		return jsonReply(201, map[string]any{"ports": out})
	}
	return jsonReply(201, map[string]any{"port": out[0]})
}

func (a *api) put(r *http.Request, who caller, id string, body []byte) reply {
	p, err := a.find(who, id)
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
	if h, ok := strings.CutPrefix(r.Header.Get("If-Match"), "revision_number="); ok { // other conditions are ignored
		n, err := strconv.Atoi(h)
		if err != nil {
			return refuse(400, "BadRequest", "Bad if-match request: Revision number etag must be in the format of revision_number=<int>.").reply()
		}
		revision = n
	}
	late, err := a.update(p, revision, b)
	if err != nil {
		return err.reply()
	}
	return jsonReply(200, map[string]any{"port": a.hosts.answered(p, late).described(who)})
}

func (a *api) remove(who caller, id string) reply {
	p, err := a.find(who, id)
	if err == nil {
		err = who.permits("delete_port", nil)
	}
	if err == nil && strings.HasPrefix(p.Owner, "network:") {
		err = refuse(409, "ServicePortInUse", "Port %s cannot be deleted directly via the port API: has device owner %s.", id, p.Owner)
	}
	if err != nil {
		return err.reply()
	}
	a.ports.drop(id)
	return reply{Status: 204}
}
