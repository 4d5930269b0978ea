package vpc

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/berthnet/berth/lab/cloud/iam"
	"github.com/berthnet/berth/lab/cloud/spec"
)

// Principal is who makes a call.
type Principal struct {
	ARN    string
	Policy iam.Policy
}

// Key is a credential. Token and Expires are zero for a static one.
type Key struct {
	ID, Secret, Token string
	Issued, Expires   time.Time
	Principal         Principal
}

// credentials are all the keys that the endpoint knows.
type credentials struct {
	rng   *rand.Rand
	keys  map[string]Key
	roles map[string]iam.Policy
	ttl   time.Duration
	// current is the role key that an instance was given last.
	current map[string]string
}

func newCredentials(s spec.Spec, seed uint64) (credentials, error) {
	c := credentials{
		rng: rand.New(rand.NewPCG(seed, 0x6b657973)), keys: map[string]Key{}, roles: map[string]iam.Policy{},
		ttl: s.IMDS.CredentialTTL.D(), current: map[string]string{},
	}
	for _, k := range s.AccessKeys {
		actions := k.Actions
		if actions == nil && k.Policy == "" {
			actions = []string{"*"}
		}
		policy, err := policyOf(actions, k.Policy)
		if err != nil {
			return c, err
		}
		c.keys[k.ID] = Key{ID: k.ID, Secret: k.Secret, Principal: Principal{
			ARN: fmt.Sprintf("arn:aws:iam::%s:user/%s", s.Account, strings.ToLower(k.ID)), Policy: policy,
		}}
	}
	for _, r := range s.Roles {
		policy, err := policyOf(r.Actions, r.Policy)
		if err != nil {
			return c, err
		}
		c.roles[r.Name] = policy
	}
	return c, nil
}

// policyOf is what actions and a policy document allow together.
func policyOf(actions []string, document string) (iam.Policy, error) {
	if document == "" {
		return iam.Allow(actions...), nil
	}
	p, err := iam.Parse([]byte(document))
	return iam.Join(iam.Allow(actions...), p), err
}

func (c *credentials) text(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(c.rng.Uint32())
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// Key finds a credential by its access key ID, expired ones included.
func (c *Cloud) Key(id string) (k Key, ok bool) {
	c.read(func() { k, ok = c.credentials.keys[id] })
	return k, ok
}

// SetRoleActions replaces what a role may do, for credentials issued from now on
// and for those already issued.
func (c *Cloud) SetRoleActions(role string, actions []string) {
	c.read(func() {
		c.credentials.roles[role] = iam.Allow(actions...)
		for id, k := range c.credentials.keys {
			if strings.Contains(k.Principal.ARN, ":assumed-role/"+role+"/") {
				k.Principal.Policy = iam.Allow(actions...)
				c.credentials.keys[id] = k
			}
		}
	})
}

// SetCredentialTTL changes how long role credentials issued from now on live;
// what an instance holds is replaced at its next request.
func (c *Cloud) SetCredentialTTL(ttl time.Duration) {
	c.read(func() { c.credentials.ttl, c.credentials.current = ttl, map[string]string{} })
}

// RoleCredentials returns the current credentials of an instance's role. They
// are replaced once half of their life is over; the old ones stay valid until
// they expire. False when the instance has no role.
func (c *Cloud) RoleCredentials(instanceID string) (role string, k Key, ok bool) {
	c.read(func() {
		i := c.instances.get(instanceID)
		if i == nil || i.Role == "" {
			return
		}
		role, ok = i.Role, true
		cr, now := &c.credentials, c.clock.Now()
		if k = cr.keys[cr.current[instanceID]]; k.ID != "" && now.Before(k.Issued.Add(k.Expires.Sub(k.Issued)/2)) {
			return
		}
		k = Key{
			ID: "ASIA" + strings.ToUpper(fmt.Sprintf("%016x", cr.rng.Uint64())), Secret: cr.text(30), Token: cr.text(96),
			Issued: now, Expires: now.Add(cr.ttl).Truncate(time.Second),
			Principal: Principal{
				ARN:    fmt.Sprintf("arn:aws:sts::%s:assumed-role/%s/%s", c.account, role, instanceID),
				Policy: cr.roles[role],
			},
		}
		cr.keys[k.ID], cr.current[instanceID] = k, k.ID
		c.eventually(k.Expires.Sub(now)+time.Hour, func() { delete(cr.keys, k.ID) })
	})
	return role, k, ok
}
