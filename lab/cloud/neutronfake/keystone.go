package neutronfake

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
)

// Keystone is the identity service. It is safe for concurrent use.
type Keystone struct {
	clock     clock.Clock
	tokenLife time.Duration
	region    string

	mu      sync.Mutex // guards all below
	users   []User
	tokens  map[string]token
	catalog string // Neutron's URL in the catalog; empty: the URL that the request used
	made    int    // number of tokens issued
}

func (k *Keystone) set(do func()) { k.mu.Lock(); defer k.mu.Unlock(); do() }

// token is a token issued by Keystone.
type token struct {
	user, domain string
	expires      time.Time
}

// SetCatalog sets Neutron's URL in Keystone's catalog. If empty, the catalog has the URL that the request
// used, without its path.
func (k *Keystone) SetCatalog(url string) { k.set(func() { k.catalog = url }) }

// RevokeTokens invalidates all tokens, like a restart of Keystone with new keys.
func (k *Keystone) RevokeTokens() { k.set(func() { clear(k.tokens) }) }

// Tokens returns the number of valid tokens.
func (k *Keystone) Tokens() (n int) {
	k.set(func() {
		for _, t := range k.tokens {
			if k.clock.Now().Before(t.expires) {
				n++
			}
		}
	})
	return n
}

func keystoneError(status int, title, message string) reply {
	return jsonReply(status, map[string]any{"error": map[string]any{"code": status, "title": title, "message": message}})
}

// authRequest is POST /v3/auth/tokens (Identity API v3).
type authRequest struct {
	Auth struct {
		Identity struct {
			Methods  []string `json:"methods"`
			Password struct {
				User struct {
					Name     string `json:"name"`
					Password string `json:"password"`
					Domain   struct {
						Name string `json:"name"`
					} `json:"domain"`
				} `json:"user"`
			} `json:"password"`
			Credential struct {
				ID     string `json:"id"`
				Secret string `json:"secret"`
			} `json:"application_credential"`
		} `json:"identity"`
		Scope *struct {
			Project struct {
				Name   string `json:"name"`
				Domain struct {
					Name string `json:"name"`
				} `json:"domain"`
			} `json:"project"`
		} `json:"scope"`
	} `json:"auth"`
}

// serve handles requests below /v3.
func (k *Keystone) serve(r *http.Request, body []byte) reply {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.users) == 0 || r.URL.Path != "/v3/auth/tokens" {
		return keystoneError(404, "Not Found", "The resource could not be found.")
	}
	if r.Method != http.MethodPost {
		return keystoneError(405, "Method Not Allowed", "The method is not allowed for the requested URL.")
	}
	var req authRequest
	if err := json.Unmarshal(body, &req); err != nil || len(req.Auth.Identity.Methods) == 0 {
		return keystoneError(400, "Bad Request", "Expecting to find identity in auth. The server could not comply with the request since it is either malformed or otherwise incorrect. The client is assumed to be in error.")
	}
	for _, u := range k.users {
		if u.proves(req) {
			return k.newToken(u, req.Auth.Identity.Methods, r)
		}
	}
	return keystoneError(401, "Unauthorized", "The request you have made requires authentication.")
}

// proves reports whether a request has the credentials of this user. The scope must be the user's
// project; an application credential must have no scope.
func (u User) proves(req authRequest) bool {
	id := req.Auth.Identity
	if len(id.Methods) != 1 {
		return false
	}
	switch id.Methods[0] {
	case "password":
		s := req.Auth.Scope
		return id.Password.User.Name == u.Name && id.Password.User.Password == u.Password && id.Password.User.Domain.Name == u.Domain &&
			s != nil && s.Project.Name == u.Project && s.Project.Domain.Name == u.ProjectDomain
	case "application_credential":
		return u.Credential != "" && id.Credential.ID == u.Credential && id.Credential.Secret == u.Secret && req.Auth.Scope == nil
	default:
		return false
	}
}

// newToken replies with a new token. The caller must hold k.mu.
func (k *Keystone) newToken(u User, methods []string, r *http.Request) reply {
	k.made++
	id := fmt.Sprintf("gAAAAAB%040x", k.made)
	now := k.clock.Now()
	k.tokens[id] = token{user: u.Name, domain: u.Domain, expires: now.Add(k.tokenLife)}
	url := k.catalog
	if url == "" {
		url = "http://" + r.Host
		if r.TLS != nil {
			url = "https://" + r.Host
		}
	}
	const micros = "2006-01-02T15:04:05.000000Z"
	role := "admin"
	if u.Reader {
		role = "member"
	}
	out := jsonReply(201, map[string]any{"token": map[string]any{
		"methods":    methods,
		"user":       map[string]any{"id": "u-" + u.Name, "name": u.Name, "domain": map[string]any{"id": "default", "name": u.Domain}, "password_expires_at": nil},
		"project":    map[string]any{"id": u.ProjectID, "name": u.Project, "domain": map[string]any{"id": "default", "name": u.ProjectDomain}},
		"is_domain":  false,
		"roles":      []any{map[string]any{"id": "r-" + role, "name": role}},
		"audit_ids":  []string{fmt.Sprintf("a-%d", k.made)},
		"issued_at":  now.UTC().Format(micros),
		"expires_at": now.Add(k.tokenLife).UTC().Format(micros),
		"catalog": []any{
			map[string]any{"id": "c-identity", "type": "identity", "name": "keystone", "endpoints": k.endpoints("i", url+"/v3")},
			map[string]any{"id": "c-network", "type": "network", "name": "neutron", "endpoints": k.endpoints("n", url)},
		},
	}})
	out.Header["X-Subject-Token"] = id
	return out
}

// endpoints returns the endpoints of a service. Only the public endpoint works.
func (k *Keystone) endpoints(id, url string) (out []any) {
	for _, e := range []struct{ face, url string }{{"admin", "http://admin.invalid"}, {"internal", "http://internal.invalid"}, {"public", url}} {
		out = append(out, map[string]any{"id": id + "-" + e.face, "interface": e.face, "region": k.region, "region_id": k.region, "url": e.url})
	}
	return out
}
