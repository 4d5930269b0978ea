package openstack

import (
	"context"
	"fmt"
	"time"
)

// noauthProject is the project without Keystone, when Neutron accepts any project.
const noauthProject = "b0a7b0a7b0a74b0a8b0a7b0a7b0a7b0a"

// projectName is the name of the project of all resources.
const projectName = "berth"

// Project returns the ID of the project of all resources.
func (c *Cloud) Project() string {
	if c.keystone == nil {
		return noauthProject
	}
	c.keystone.mu.Lock()
	defer c.keystone.mu.Unlock()
	return c.keystone.project
}

// scope returns the scope of a token for a project.
func scope(project string) map[string]any {
	return map[string]any{"project": map[string]any{"name": project, "domain": map[string]any{"id": "default"}}}
}

// password returns the credentials of a user.
func password(user, secret string) map[string]any {
	return map[string]any{
		"methods":  []string{"password"},
		"password": map[string]any{"user": map[string]any{"name": user, "domain": map[string]any{"id": "default"}, "password": secret}},
	}
}

// login requests a token.
func (k *keystone) login(ctx context.Context, user, secret, project string) (token, userID string, err error) {
	var out struct {
		Token struct {
			User struct {
				ID string `json:"id"`
			} `json:"user"`
		} `json:"token"`
	}
	header, err := k.programs.do(ctx, call{method: "POST", url: keystoneURL() + "/auth/tokens", body: map[string]any{
		"auth": map[string]any{"identity": password(user, secret), "scope": scope(project)},
	}}, &out)
	if err != nil {
		return "", "", fmt.Errorf("request a token for %s: %w", user, err)
	}
	return header.Get("X-Subject-Token"), out.Token.User.ID, nil
}

// tokenLife is the lifetime of Keystone's tokens (fernet, "expiration").
const tokenLife = time.Hour

// adminToken returns a token of the administrator.
func (k *keystone) adminToken(ctx context.Context) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.token != "" && time.Since(k.since) < tokenLife/2 {
		return k.token, nil
	}
	token, _, err := k.login(ctx, "admin", k.password, "admin")
	k.token, k.since = token, time.Now()
	return token, err
}

// identity sends a request to Keystone's API as its administrator.
func (k *keystone) identity(ctx context.Context, method, path string, body, out any) error {
	token, err := k.adminToken(ctx)
	if err != nil {
		return err
	}
	_, err = k.programs.do(ctx, call{method: method, url: keystoneURL() + "/" + path, body: body, token: token}, out)
	return err
}

// named is a Keystone resource with an ID.
type named struct {
	ID string `json:"id"`
}

// create creates a resource in Keystone and returns its ID.
func (k *keystone) create(ctx context.Context, kind, name string, more map[string]any) (string, error) {
	attributes := map[string]any{"name": name}
	for k, v := range more {
		attributes[k] = v
	}
	out := map[string]named{}
	if err := k.identity(ctx, "POST", kind+"s", map[string]any{kind: attributes}, &out); err != nil {
		return "", fmt.Errorf("create %s %s: %w", kind, name, err)
	}
	return out[kind].ID, nil
}

// initialize adds Neutron to the catalog, and creates the project and the role Role.
func (k *keystone) initialize(ctx context.Context) error {
	service, err := k.create(ctx, "service", "neutron", map[string]any{"type": "network"})
	if err != nil {
		return err
	}
	if _, err := k.create(ctx, "endpoint", "neutron", map[string]any{"service_id": service, "interface": "public", "region_id": Region, "url": neutronURL()}); err != nil {
		return err
	}
	project, err := k.create(ctx, "project", projectName, nil)
	if err != nil {
		return err
	}
	if _, err := k.create(ctx, "role", Role, nil); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.project = project
	return nil
}

// User is a user of Keystone's domain Default, for the project called Project.
type User struct{ Name, Password, Project string }

// AddUser creates a user with the role member in the project and further roles, such as Role. It returns an
// error without Keystone.
func (c *Cloud) AddUser(ctx context.Context, name string, roles ...string) (User, error) {
	u := User{Name: name, Password: secret(), Project: projectName}
	if c.keystone == nil {
		return u, fmt.Errorf("create user %s: this instance has no Keystone", name)
	}
	id, err := c.keystone.create(ctx, "user", name, map[string]any{"password": u.Password, "default_project_id": c.Project()})
	if err != nil {
		return u, err
	}
	for _, role := range append([]string{"member"}, roles...) {
		var out struct {
			Roles []named `json:"roles"`
		}
		if err := c.keystone.identity(ctx, "GET", "roles?name="+role, nil, &out); err != nil {
			return u, err
		}
		if len(out.Roles) != 1 {
			return u, fmt.Errorf("create user %s: role %q does not exist", name, role)
		}
		if err := c.keystone.identity(ctx, "PUT", "projects/"+c.Project()+"/users/"+id+"/roles/"+out.Roles[0].ID, nil, nil); err != nil {
			return u, fmt.Errorf("assign role %[2]s to user %[1]s: %[3]w", name, role, err)
		}
	}
	return u, nil
}

// ApplicationCredential creates an application credential of a user, with all of the user's roles in the
// project, and returns its ID and secret.
func (c *Cloud) ApplicationCredential(ctx context.Context, u User, name string) (id, key string, err error) {
	token, user, err := c.keystone.login(ctx, u.Name, u.Password, u.Project)
	if err != nil {
		return "", "", err
	}
	key = secret()
	var out struct {
		Credential named `json:"application_credential"`
	}
	_, err = c.do(ctx, call{method: "POST", url: keystoneURL() + "/users/" + user + "/application_credentials", token: token, body: map[string]any{
		"application_credential": map[string]any{"name": name, "secret": key},
	}}, &out)
	if err != nil {
		return "", "", fmt.Errorf("create application credential %s: %w", name, err)
	}
	return out.Credential.ID, key, nil
}
