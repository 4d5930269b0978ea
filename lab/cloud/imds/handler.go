// Package imds serves the instance metadata service of a vpc.Cloud, versions 2 (with session tokens) and 1
// (EC2 User Guide, "Use instance metadata to manage your EC2 instance"). Its data lags behind EC2 by the
// cloud's IMDS delay. It provides expiring credentials of the instance's role.
package imds

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berthnet/berth/lab/cloud/httpreply"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

// Headers and limits of session tokens (EC2 User Guide, "How Instance Metadata Service Version 2 works").
const (
	sessionHeader = "X-Aws-Ec2-Metadata-Token"
	ttlHeader     = "X-Aws-Ec2-Metadata-Token-Ttl-Seconds"
	maxTokenTTL   = 21600 // seconds
)

// versions are the supported versions of the metadata, all with the same content (EC2 User Guide,
// "Instance metadata categories").
var versions = []string{
	"1.0", "2007-01-19", "2007-03-01", "2007-08-29", "2007-10-10", "2007-12-15", "2008-02-01", "2008-09-01", "2009-04-04",
	"2011-01-01", "2011-05-01", "2012-01-12", "2014-02-25", "2014-11-05", "2015-10-20", "2016-04-19", "2016-06-30", "2016-09-02",
	"2018-03-28", "2018-08-17", "2018-09-24", "2019-10-01", "2020-10-27", "2021-01-03", "2021-03-23", "2021-07-15",
	"2022-07-09", "2022-09-24", "2024-04-11", "latest",
}

type handler struct {
	cloud    *vpc.Cloud
	identify func(*http.Request) (instanceID string, ok bool)

	mu     sync.Mutex // guards tokens
	tokens map[string]session
}

type session struct {
	instanceID string
	expires    time.Time
}

// Handler serves the metadata of the instance that identify returns for a request. Other requests get 404.
func Handler(cloud *vpc.Cloud, identify func(*http.Request) (instanceID string, ok bool)) http.Handler {
	return &handler{cloud: cloud, identify: identify, tokens: map[string]session{}}
}

// ServeHTTP handles one request.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.cloud.IMDS.Down() {
		httpreply.HangUp(w)
		return
	}
	id, ok := h.identify(r)
	if !ok {
		http.Error(w, "404 - Not Found: no instance has this address", http.StatusNotFound)
		return
	}
	switch {
	case r.URL.Path == "/latest/api/token":
		h.token(w, r, id)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		http.Error(w, "405 - Method Not Allowed", http.StatusMethodNotAllowed)
	case !h.authorized(r, id):
		http.Error(w, "401 - Unauthorized", http.StatusUnauthorized)
	default:
		h.serve(w, r, id)
	}
}

// token opens a session.
func (h *handler) token(w http.ResponseWriter, r *http.Request, id string) {
	if r.Method != http.MethodPut {
		http.Error(w, "405 - Method Not Allowed", http.StatusMethodNotAllowed)
		return
	}
	if r.Header.Get("X-Forwarded-For") != "" {
		http.Error(w, "403 - Forbidden", http.StatusForbidden)
		return
	}
	ttl, err := strconv.Atoi(r.Header.Get(ttlHeader))
	if err != nil || ttl < 1 || ttl > maxTokenTTL {
		http.Error(w, "400 - Bad Request", http.StatusBadRequest)
		return
	}
	b := make([]byte, 40)
	if _, err := rand.Read(b); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	token := base64.URLEncoding.EncodeToString(b)
	h.open(token, session{id, h.cloud.Clock().Now().Add(time.Duration(ttl) * time.Second)})
	w.Header().Set(ttlHeader, strconv.Itoa(ttl))
	w.Header().Set("Content-Type", "text/plain")
	fmt.Fprint(w, token)
}

// open adds a session and removes expired ones.
func (h *handler) open(token string, s session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.cloud.Clock().Now()
	for t, old := range h.tokens {
		if !now.Before(old.expires) {
			delete(h.tokens, t)
		}
	}
	h.tokens[token] = s
}

// authorized reports whether a request has a token of its instance, or needs none.
func (h *handler) authorized(r *http.Request, id string) bool {
	given, there := r.Header[sessionHeader]
	if !there {
		return h.cloud.IMDS.V1()
	}
	token := given[0] // an empty token is invalid
	h.mu.Lock()
	defer h.mu.Unlock()
	s, ok := h.tokens[token]
	return ok && s.instanceID == id && h.cloud.Clock().Now().Before(s.expires)
}

// serve replies to a path below a version: with a value, or with the names below it.
func (h *handler) serve(w http.ResponseWriter, r *http.Request, id string) {
	version, path, _ := strings.Cut(strings.TrimLeft(r.URL.Path, "/"), "/")
	w.Header().Set("Content-Type", "text/plain")
	if version == "" {
		fmt.Fprint(w, strings.Join(versions, "\n"))
		return
	}
	if !slices.Contains(versions, version) {
		http.Error(w, "404 - Not Found", http.StatusNotFound)
		return
	}
	t, ok := h.tree(id)
	if !ok {
		http.Error(w, "404 - Not Found", http.StatusNotFound)
		return
	}
	text, ok := t.get(path)
	if !ok {
		http.Error(w, "404 - Not Found", http.StatusNotFound)
		return
	}
	fmt.Fprint(w, text)
}
