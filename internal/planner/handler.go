package planner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/ec2/maxpods"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/version"
)

// ServeOptions limit the resources that visitors of the page may use. Zero values mean the defaults noted below.
type ServeOptions struct {
	// AtOnce is the maximum number of concurrent simulations; 1 by default. More are rejected, and do not wait.
	AtOnce int
	// Most is how long a simulation may take; a minute, as a day of 100 nodes takes 8 s of CPU time.
	Most time.Duration
	// Simulate runs a simulation; Simulate of this package. A server uses InChild.
	Simulate func(context.Context, Scenario) (*Result, error)
}

// Handler serves the planner's page and its API: GET api/types, GET api/scenarios and POST api/simulate. It stores
// nothing that visitors send.
func Handler(page fs.FS, o ServeOptions) http.Handler {
	if o.AtOnce <= 0 {
		o.AtOnce = 1
	}
	if o.Most <= 0 {
		o.Most = time.Minute
	}
	if o.Simulate == nil {
		o.Simulate = Simulate
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/types", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, types()) })
	mux.HandleFunc("GET /api/scenarios", func(w http.ResponseWriter, _ *http.Request) {
		list, err := Examples()
		if err != nil {
			reply(w, http.StatusInternalServerError, Failure{Error: err.Error()})
			return
		}
		reply(w, http.StatusOK, map[string]any{"scenarios": list})
	})
	mux.Handle("POST /api/simulate", &simulations{ServeOptions: o, places: make(chan struct{}, o.AtOnce)})
	mux.HandleFunc("/api/", func(w http.ResponseWriter, r *http.Request) {
		reply(w, http.StatusNotFound, Failure{Error: r.Method + " " + r.URL.Path + ": the API has GET /api/types, GET /api/scenarios and POST /api/simulate"})
	})
	files := http.FileServerFS(page)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			reply(w, http.StatusMethodNotAllowed, Failure{Error: r.Method + ": expected GET or HEAD"})
			return
		}
		files.ServeHTTP(w, r)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		mux.ServeHTTP(w, r)
	})
}

// simulations runs simulations for visitors.
type simulations struct {
	ServeOptions
	places chan struct{} // one element for each simulation that runs
}

// ServeHTTP implements http.Handler.
func (s *simulations) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// A page of another site may send a simple request without a preflight request.
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
	default:
		reply(w, http.StatusForbidden, Failure{Error: "requests from other sites are rejected"})
		return
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxSize))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		reply(w, http.StatusRequestEntityTooLarge, Failure{Error: fmt.Sprintf("the scenario is too large: expected at most %d bytes", MaxSize)})
		return
	}
	if err != nil {
		reply(w, http.StatusBadRequest, Failure{Error: "read the scenario: " + err.Error()})
		return
	}
	scenario, err := Parse(text)
	if err == nil {
		err = scenario.Check()
	}
	if err == nil {
		err = scenario.checkServed()
	}
	if err != nil {
		replyError(w, err)
		return
	}
	select {
	case s.places <- struct{}{}:
		defer func() { <-s.places }()
	default:
		w.Header().Set("Retry-After", "2")
		reply(w, http.StatusTooManyRequests, Failure{Error: "too many simulations run at the moment: try again"})
		return
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), s.Most, fmt.Errorf("the simulation took longer than %v: simulate a shorter time, fewer nodes or fewer alternatives", s.Most))
	defer cancel()
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.Most + 10*time.Second)) // not every writer has one
	result, err := s.Simulate(ctx, scenario)
	if err != nil {
		replyError(w, err)
		return
	}
	reply(w, http.StatusOK, result)
}

func replyError(w http.ResponseWriter, err error) {
	if p, ok := errors.AsType[Problems](err); ok {
		reply(w, http.StatusBadRequest, Failure{Error: p.Error(), Fields: p})
		return
	}
	reply(w, http.StatusServiceUnavailable, Failure{Error: err.Error()})
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // fails if the visitor has disconnected
}

// types describes instance types and limits of scenarios.
func types() any {
	list := []TypeInfo{}
	for e := range limits.All() {
		t := TypeInfo{Type: e.Type, ENIs: e.MaxENIs, IPv4PerENI: e.IPv4PerENI, IPv6PerENI: e.IPv6PerENI, Prefixes: e.Prefixes, Branches: limits.Branches(e.Type)}
		if c, err := maxpods.Of(e.Type, maxpods.Options{Families: ipfamily.OnlyIPv4}); err == nil {
			t.MaxPods = c.MaxPods
		}
		list = append(list, t)
	}
	return map[string]any{
		"types": list, "actions": pace.Actions(), "version": version.String(),
		"bounds": map[string]any{"nodes": maxServedNodes, "pods": MaxPods, "duration": Duration(MaxDuration), "alternatives": MaxAlternatives},
	}
}
