// Package neutron serves ports in memory as OpenStack Networking does: its REST API, with
// its types of errors, its filters and pages, and nothing that it would not take.
//
//	server.go  requests and answers
//	ports.go   ports, as Neutron writes them
//	errors.go  what is answered to what cannot be
package neutron

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/portfake"
)

// maxBody is the longest request, in bytes (oslo.middleware, max_request_body_size).
const maxBody = 114688

// Server is the API of the ports of some books, which ask for no credentials.
type Server struct {
	books *portfake.Provider
	mux   *http.ServeMux
}

// NewServer serves what is in books. Networks, hosts and groups are put there by who has
// them.
func NewServer(books *portfake.Provider) *Server {
	s := &Server{books, http.NewServeMux()}
	s.mux.HandleFunc("GET /v2.0/ports", s.list)
	s.mux.HandleFunc("POST /v2.0/ports", s.create)
	s.mux.HandleFunc("GET /v2.0/ports/{id}", s.get)
	s.mux.HandleFunc("PUT /v2.0/ports/{id}", s.update)
	s.mux.HandleFunc("DELETE /v2.0/ports/{id}", s.remove)
	s.mux.HandleFunc("GET /v2.0/networks", s.networks)
	s.mux.HandleFunc("GET /v2.0/subnets", s.subnets)
	return s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength > maxBody {
		refuse(w, http.StatusRequestEntityTooLarge, "HTTPRequestEntityTooLarge", "Request is too large.")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	s.mux.ServeHTTP(w, r)
}

// answer writes a reply of one key.
func answer(w http.ResponseWriter, status int, key string, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{key: value}) // the client may have gone
}

// read takes a request's body, which has known keys only.
func read(w http.ResponseWriter, r *http.Request, into any) bool {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		refuse(w, http.StatusBadRequest, "HTTPBadRequest", "Unrecognized attribute(s) or malformed body: "+err.Error())
		return false
	}
	return true
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	limit, _ := strconv.Atoi(q.Get("limit"))
	if by := q.Get("sort_key"); limit > 0 && by != "id" {
		refuse(w, http.StatusBadRequest, "HTTPBadRequest", "pages are by sort_key=id here")
		return
	}
	out := []map[string]any{}
	for _, p := range s.books.All() { // by ID
		if limit > 0 && len(out) == limit {
			break
		}
		if p.ID > q.Get("marker") && listed(p, q) {
			out = append(out, only(portOf(p), q["fields"]))
		}
	}
	answer(w, http.StatusOK, "ports", out)
}

// listed tells whether a port has one of the values of each filter.
func listed(p vpcport.Port, q map[string][]string) bool {
	for key, have := range map[string]string{
		"id": p.ID, "device_id": p.Device, "device_owner": p.Owner, "network_id": p.NetworkID, "mac_address": p.MAC.String(),
	} {
		if want := q[key]; len(want) > 0 && !slices.Contains(want, have) {
			return false
		}
	}
	return true
}

// only are some fields of an object; all without names.
func only(object map[string]any, fields []string) map[string]any {
	if len(fields) == 0 {
		return object
	}
	out := map[string]any{}
	for _, f := range fields {
		if v, ok := object[f]; ok {
			out[f] = v
		}
	}
	return out
}

func (s *Server) get(w http.ResponseWriter, r *http.Request) {
	p, err := s.books.Get(r.Context(), r.PathValue("id"))
	if err != nil {
		failed(w, err)
		return
	}
	answer(w, http.StatusOK, "port", portOf(p))
}

// create takes one port or several, all of which are made or none.
func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Port  *newPort  `json:"port"`
		Ports []newPort `json:"ports"`
	}
	if !read(w, r, &body) {
		return
	}
	asked := body.Ports
	if body.Port != nil {
		asked = []newPort{*body.Port}
	}
	var want []vpcport.NewPort
	for _, a := range asked {
		n, err := a.asked()
		if err != nil {
			refuse(w, http.StatusBadRequest, "HTTPBadRequest", err.Error())
			return
		}
		want = append(want, n)
	}
	made, err := s.books.Create(r.Context(), want)
	if err != nil {
		failed(w, err)
		return
	}
	var out []map[string]any
	for _, p := range made {
		out = append(out, portOf(p))
	}
	if body.Port != nil {
		answer(w, http.StatusCreated, "port", out[0])
		return
	}
	answer(w, http.StatusCreated, "ports", out)
}

func (s *Server) update(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Port change `json:"port"`
	}
	if !read(w, r, &body) {
		return
	}
	revision := 0
	if match := r.Header.Get("If-Match"); match != "" {
		n, found := strings.CutPrefix(match, "revision_number=")
		var err error
		if revision, err = strconv.Atoi(n); err != nil || !found {
			refuse(w, http.StatusBadRequest, "HTTPBadRequest", "Bad format for If-Match header. Use 'If-Match: revision_number=<num>'.")
			return
		}
	}
	p, err := s.books.Update(r.Context(), r.PathValue("id"), revision, vpcport.Change{
		Host: body.Port.Host, Device: body.Port.Device, Owner: body.Port.Owner, Groups: body.Port.Groups,
	})
	if err != nil {
		failed(w, err)
		return
	}
	answer(w, http.StatusOK, "port", portOf(p))
}

func (s *Server) remove(w http.ResponseWriter, r *http.Request) {
	_, err := s.books.Get(r.Context(), r.PathValue("id"))
	if err == nil {
		err = s.books.Delete(r.Context(), r.PathValue("id"))
	}
	if err != nil {
		failed(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// networks are found by ID or by name.
func (s *Server) networks(w http.ResponseWriter, r *http.Request) {
	q, out := r.URL.Query(), []map[string]any{}
	for _, n := range s.books.Networks() {
		if (!q.Has("id") || slices.Contains(q["id"], n.ID)) && (!q.Has("name") || slices.Contains(q["name"], n.Name)) {
			out = append(out, only(map[string]any{"id": n.ID, "name": n.Name, "mtu": n.MTU, "status": "ACTIVE"}, q["fields"]))
		}
	}
	answer(w, http.StatusOK, "networks", out)
}

func (s *Server) subnets(w http.ResponseWriter, r *http.Request) {
	q, out := r.URL.Query(), []map[string]any{}
	for _, n := range s.books.Networks() {
		if q.Has("network_id") && !slices.Contains(q["network_id"], n.ID) {
			continue
		}
		for _, subnet := range n.Subnets {
			out = append(out, only(subnetOf(n.ID, subnet), q["fields"]))
		}
	}
	answer(w, http.StatusOK, "subnets", out)
}
