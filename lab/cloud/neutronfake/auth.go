package neutronfake

import (
	"cmp"
	"net/http"
	"slices"
)

// User is a Keystone user with one role in one project, and optionally an application credential.
type User struct {
	Name, Password      string
	Domain              string // name; empty: Default
	Project, ProjectID  string // name (empty: berth) and ID (empty: the cloud's first)
	ProjectDomain       string // name; empty: Default
	Credential, Secret  string // ID and secret of an application credential; empty: none
	Reader              bool   // limited to its own project
	Denied              []string
	TokensWithoutAccess bool // Neutron rejects its tokens (as if it used another Keystone)
}

// AddUser adds a user, which puts Keystone in front of Neutron. User.Denied are policy rules that the
// user lacks, such as create_port, create_port:mac_address, update_port:binding:host_id, or
// get_port:binding:vif_type.
func (k *Keystone) AddUser(u User) {
	u.Domain, u.ProjectDomain = cmp.Or(u.Domain, "Default"), cmp.Or(u.ProjectDomain, "Default")
	u.Project, u.ProjectID = cmp.Or(u.Project, "berth"), cmp.Or(u.ProjectID, firstProject)
	k.set(func() { k.users = append(k.users, u) })
}

// EditUsers changes users, such as their passwords and denied rules.
func (k *Keystone) EditUsers(edit func(*User)) {
	k.set(func() {
		for i := range k.users {
			edit(&k.users[i])
		}
	})
}

// caller is the client of a request to Neutron.
type caller struct {
	project string // ID; empty: none
	admin   bool
	rules   []string // denied policy rules
}

func (w caller) sees(project string) bool { return w.admin || w.project == project }
func (w caller) denied(rule string) bool  { return slices.Contains(w.rules, rule) }

// caller returns the client of a request from its token. Without users, every client is an administrator
// without a project.
func (k *Keystone) caller(r *http.Request) (caller, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.users) == 0 {
		return caller{admin: true}, true
	}
	t, ok := k.tokens[r.Header.Get("X-Auth-Token")]
	if !ok || !k.clock.Now().Before(t.expires) {
		return caller{}, false
	}
	for _, u := range k.users {
		if u.Name == t.user && u.Domain == t.domain && !u.TokensWithoutAccess {
			return caller{project: u.ProjectID, admin: !u.Reader, rules: u.Denied}, true
		}
	}
	return caller{}, false
}

// unauthenticated is the reply of keystonemiddleware.
func unauthenticated() reply {
	r := keystoneError(401, "Unauthorized", "The request you have made requires authentication.")
	r.Header["WWW-Authenticate"] = `Keystone uri="http://keystone.invalid/v3"`
	return r
}

// permits checks the policy for an action and the attributes that it sets.
func (w caller) permits(action string, b *portBody) *refusal {
	rules := []string{action}
	if b != nil {
		for _, a := range []struct {
			name string
			set  bool
		}{
			{"mac_address", b.MAC != nil}, {"fixed_ips", b.FixedIPs != nil}, {"binding:host_id", b.Host != nil}, {"device_owner", b.Owner != nil},
		} {
			if a.set {
				rules = append(rules, action+":"+a.name)
			}
		}
	}
	for _, rule := range rules {
		if w.denied(rule) {
			return refuse(403, "PolicyNotAuthorized", "(rule:%s and rule:%s) is disallowed by policy", action, rule)
		}
	}
	if b != nil && !w.admin && b.project(w) != w.project {
		return badRequest("Specifying 'project_id' or 'tenant_id' other than the authenticated project in request is not allowed for current user.")
	}
	return nil
}
