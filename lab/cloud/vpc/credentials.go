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

// Principal is the caller of the API.
type Principal struct {
	ARN    string
	Policy iam.Policy
	// InstanceID is the instance that got the credentials from its metadata service; empty for other credentials.
	InstanceID string
}

// Key is a credential. Token and Expires are zero for a static one.
type Key struct {
	ID, Secret, Token string
	Issued, Expires   time.Time
	Principal         Principal
}

// Keys are the valid credentials and the permissions of roles. The world's lock guards them.
type Keys struct {
	world   *world
	store   *store
	account string
	rng     *rand.Rand
	keys    map[string]Key // by ID
	roles   map[string]iam.Policy
	ttl     time.Duration     // the keys of roles
	current map[string]string // the latest role key issued to an instance
	tokens  tokens
}

func newKeys(s spec.Spec, seed uint64, st *store) (*Keys, error) {
	ks := &Keys{
		world: st.world, store: st, account: s.Account, rng: rand.New(rand.NewPCG(seed, 0x6b657973)),
		keys: map[string]Key{}, roles: map[string]iam.Policy{}, ttl: s.IMDS.CredentialTTL.D(), current: map[string]string{},
		tokens: tokens{trusted: map[string]string{}},
	}
	ks.tokens.secret = []byte(ks.text(32))
	for _, k := range s.AccessKeys {
		actions := k.Actions
		if actions == nil && k.Policy == "" {
			actions = []string{"*"}
		}
		policy, err := policyOf(actions, k.Policy)
		if err != nil {
			return nil, err
		}
		ks.keys[k.ID] = Key{ID: k.ID, Secret: k.Secret, Principal: Principal{
			ARN: fmt.Sprintf("arn:aws:iam::%s:user/%s", s.Account, strings.ToLower(k.ID)), Policy: policy,
		}}
	}
	for _, r := range s.Roles {
		policy, err := policyOf(r.Actions, r.Policy)
		if err != nil {
			return nil, err
		}
		ks.roles[r.Name] = policy
		ks.tokens.trust(r)
	}
	return ks, nil
}

// policyOf joins a list of actions and a policy document.
func policyOf(actions []string, document string) (iam.Policy, error) {
	if document == "" {
		return iam.Allow(actions...), nil
	}
	p, err := iam.Parse([]byte(document))
	return iam.Join(iam.Allow(actions...), p), err
}

// text returns random text from n bytes, in base64.
func (ks *Keys) text(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(ks.rng.Uint32())
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// Find finds a credential by its access key ID, even an expired one.
func (ks *Keys) Find(id string) (k Key, ok bool) {
	ks.world.read(func() { k, ok = ks.keys[id] })
	return k, ok
}

// SetRoleActions replaces the permissions of a role, even for credentials that have been issued.
func (ks *Keys) SetRoleActions(role string, actions []string) {
	ks.world.read(func() {
		ks.roles[role] = iam.Allow(actions...)
		for id, k := range ks.keys {
			if strings.Contains(k.Principal.ARN, ":assumed-role/"+role+"/") {
				k.Principal.Policy = iam.Allow(actions...)
				ks.keys[id] = k
			}
		}
	})
}

// SetCredentialTTL changes the lifetime of role credentials. Each instance gets new ones with its next
// request.
func (ks *Keys) SetCredentialTTL(ttl time.Duration) {
	ks.world.read(func() { ks.ttl, ks.current = ttl, map[string]string{} })
}

// RoleCredentials returns the current credentials of an instance's role, or false if the instance has no
// role. New credentials replace them after half of their lifetime; the old ones stay valid until they
// expire.
func (ks *Keys) RoleCredentials(instanceID string) (role string, k Key, ok bool) {
	ks.world.read(func() {
		i := ks.store.instances.get(instanceID)
		if i == nil || i.Role == "" {
			return
		}
		role, ok = i.Role, true
		if k = ks.keys[ks.current[instanceID]]; k.ID != "" && ks.world.clock.Now().Before(k.Issued.Add(k.Expires.Sub(k.Issued)/2)) {
			return
		}
		k = ks.issue(role, instanceID)
		k.Principal.InstanceID = instanceID
		ks.keys[k.ID], ks.current[instanceID] = k, k.ID
	})
	return role, k, ok
}

// issue returns new credentials of a session of a role, valid until they expire. The caller must hold the lock.
func (ks *Keys) issue(role, session string) Key {
	now := ks.world.clock.Now()
	k := Key{
		ID: "ASIA" + strings.ToUpper(fmt.Sprintf("%016x", ks.rng.Uint64())), Secret: ks.text(30), Token: ks.text(96),
		Issued: now, Expires: now.Add(ks.ttl).Truncate(time.Second),
		Principal: Principal{ARN: fmt.Sprintf("arn:aws:sts::%s:assumed-role/%s/%s", ks.account, role, session), Policy: ks.roles[role]},
	}
	ks.keys[k.ID] = k
	ks.world.eventually(k.Expires.Sub(now)+time.Hour, func() { delete(ks.keys, k.ID) })
	return k
}
