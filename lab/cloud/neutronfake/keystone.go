package neutronfake

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// token is one that Keystone gave.
type token struct {
	user, domain string
	expires      time.Time
}

// SetCatalog says which URL of Neutron Keystone's catalog has. Empty: that by which
// Keystone itself was reached, without its path.
func (c *Cloud) SetCatalog(url string) { c.set(func() { c.catalog = url }) }

// RevokeTokens makes all tokens void, as a restart of Keystone with other keys does.
func (c *Cloud) RevokeTokens() { c.set(func() { clear(c.tokens) }) }

// Tokens is how many tokens are good.
func (c *Cloud) Tokens() (n int) {
	c.set(func() {
		for _, t := range c.tokens {
			if c.clock.Now().Before(t.expires) {
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

// keystone answers what is below /v3. c.mu is held.
func (c *Cloud) keystone(r *http.Request, body []byte) reply {
	if len(c.users) == 0 || r.URL.Path != "/v3/auth/tokens" {
		return keystoneError(404, "Not Found", "The resource could not be found.")
	}
	if r.Method != http.MethodPost {
		return keystoneError(405, "Method Not Allowed", "The method is not allowed for the requested URL.")
	}
	var req authRequest
	if err := json.Unmarshal(body, &req); err != nil || len(req.Auth.Identity.Methods) == 0 {
		return keystoneError(400, "Bad Request", "Expecting to find identity in auth. The server could not comply with the request since it is either malformed or otherwise incorrect. The client is assumed to be in error.")
	}
	for _, u := range c.users {
		if u.proves(req) {
			return c.newToken(u, req.Auth.Identity.Methods, r)
		}
	}
	return keystoneError(401, "Unauthorized", "The request you have made requires authentication.")
}

// proves tells whether a request is this user's. The scope must be its project; an
// application credential has its own, and takes none.
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

func (c *Cloud) newToken(u User, methods []string, r *http.Request) reply {
	c.made++
	id := fmt.Sprintf("gAAAAAB%040x", c.made)
	now := c.clock.Now()
	c.tokens[id] = token{user: u.Name, domain: u.Domain, expires: now.Add(c.options.TokenLife)}
	url := c.catalog
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
		"audit_ids":  []string{fmt.Sprintf("a-%d", c.made)},
		"issued_at":  now.UTC().Format(micros),
		"expires_at": now.Add(c.options.TokenLife).UTC().Format(micros),
		"catalog": []any{
			map[string]any{"id": "c-identity", "type": "identity", "name": "keystone", "endpoints": c.endpoints("i", url+"/v3")},
			map[string]any{"id": "c-network", "type": "network", "name": "neutron", "endpoints": c.endpoints("n", url)},
		},
	}})
	out.header["X-Subject-Token"] = id
	return out
}

// endpoints are those of a service: public is the URL, the others lead nowhere.
func (c *Cloud) endpoints(id, url string) (out []any) {
	for _, e := range []struct{ face, url string }{{"admin", "http://admin.invalid"}, {"internal", "http://internal.invalid"}, {"public", url}} {
		out = append(out, map[string]any{"id": id + "-" + e.face, "interface": e.face, "region": c.options.Region, "region_id": c.options.Region, "url": e.url})
	}
	return out
}
