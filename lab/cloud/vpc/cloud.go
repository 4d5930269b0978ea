// Package vpc is a virtual EC2 cloud in memory: VPCs, subnets, security groups, instances and network
// interfaces, and the rules of EC2 for changing them. It has no protocol: packages ec2api and imds serve
// it over HTTP, and the fabric turns its events into links and routes.
//
// One lock guards a Cloud. Each resource is an immutable value with a history, so that describe calls and
// the metadata service can return stale state.
package vpc

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/lab/cloud/spec"
)

// Cloud is a region of one account. Its parts own the state and share the lock of the world. It is safe for
// concurrent use.
type Cloud struct {
	region, account string
	spec            spec.Spec // with defaults; immutable

	world       *world
	store       *store
	pools       *pools
	attachments *attachments

	ENIs      *ENIs      // network interfaces, their addresses, attachments and associations
	Instances *Instances // virtual machines
	API       *API       // throttling, faults and permissions of calls
	Keys      *Keys      // credentials of users and roles
	IMDS      *IMDS      // settings of the metadata service
}

// Option configures a new Cloud.
type Option func(*Cloud)

// WithClock replaces the machine's clock.
func WithClock(c clock.Clock) Option { return func(l *Cloud) { l.world.clock = c } }

// WithSeed replaces the spec's seed.
func WithSeed(seed uint64) Option { return func(l *Cloud) { l.spec.Seed = seed } }

// New creates the cloud that s describes, with its instances running. The error names all invalid fields
// of the spec. The caller must close the Cloud.
func New(s spec.Spec, opts ...Option) (*Cloud, error) {
	s, err := s.Complete()
	if err != nil {
		return nil, fmt.Errorf("lab spec: %w", err)
	}
	w := newWorld()
	c := &Cloud{region: s.Region, account: s.Account, spec: s, world: w}
	for _, o := range opts {
		o(c)
	}
	seed := c.spec.Seed
	w.rng = rand.New(rand.NewPCG(seed, 0x6c6162))
	c.store = &store{world: w, seed: byte(seed), lag: s.Consistency.Describe.D(), lagWrites: s.Consistency.Writes, imdsLag: s.IMDS.Delay.D()}
	c.pools = &pools{store: c.store, v4: map[string]*space4{}, v6: map[string]*space6{}}
	trunks := &trunks{world: w, store: c.store, branches: map[string]map[string]struct{}{}, byID: map[string]string{}}
	c.attachments = newAttachments(c.store, trunks)
	tokens := &clientTokens{world: w, used: map[string]idempotent{}}
	c.ENIs = &ENIs{world: w, store: c.store, pools: c.pools, attachments: c.attachments, trunks: trunks, tokens: tokens, quota: s.Quotas.NetworkInterfaces}
	if c.Keys, err = newKeys(s, seed, c.store); err != nil {
		return nil, fmt.Errorf("lab spec: %w", err)
	}
	c.Instances = &Instances{
		world: w, store: c.store, attachments: c.attachments, tokens: tokens, enis: c.ENIs, keys: c.Keys, account: s.Account, tags: s.LaunchTags,
	}
	c.API = newAPI(s, seed, &authorizer{store: c.store, attachments: c.attachments, region: s.Region, account: s.Account})
	c.IMDS = &IMDS{store: c.store, v1: *s.IMDS.V1}
	if err := c.build(); err != nil {
		return nil, fmt.Errorf("lab spec: %w", err)
	}
	return c, nil
}

// Close stops the cloud's timers.
func (c *Cloud) Close() { c.world.close() }

// Done is closed when the cloud is closed.
func (c *Cloud) Done() <-chan struct{} { return c.world.done }

// Region returns the region's name, such as "lab-1".
func (c *Cloud) Region() string { return c.region }

// Account returns the account's ID.
func (c *Cloud) Account() string { return c.account }

// Spec returns the spec of the cloud, with defaults.
func (c *Cloud) Spec() spec.Spec { return c.spec }

// Clock returns the clock of the cloud.
func (c *Cloud) Clock() clock.Clock { return c.world.clock }

// SetDelays changes the delays of future operations.
func (c *Cloud) SetDelays(d spec.Delays) { c.world.read(func() { c.world.delays = d }) }

// SetConsistencyDelay makes describe calls lag behind by d. Call it before the changes that should lag:
// older versions may be gone already.
func (c *Cloud) SetConsistencyDelay(d time.Duration) { c.world.read(func() { c.store.lag = d }) }

// IMDS is the settings of the metadata service. The world's lock guards them.
type IMDS struct {
	store *store
	v1    bool // replies to requests without a token
	off   bool // unreachable
}

// SetDelay makes the metadata service lag behind EC2 by d.
func (m *IMDS) SetDelay(d time.Duration) { m.store.world.read(func() { m.store.imdsLag = d }) }

// SetV1 allows or refuses metadata requests without a token.
func (m *IMDS) SetV1(on bool) { m.store.world.read(func() { m.v1 = on }) }

// V1 reports whether metadata requests without a token are allowed.
func (m *IMDS) V1() (on bool) {
	m.store.world.read(func() { on = m.v1 })
	return on
}

// Outage makes the metadata service unreachable, or reachable again.
func (m *IMDS) Outage(on bool) { m.store.world.read(func() { m.off = on }) }

// Down reports whether the metadata service is unreachable.
func (m *IMDS) Down() (down bool) {
	m.store.world.read(func() { down = m.off })
	return down
}

// Zones returns the sorted names of the availability zones of the spec's subnets.
func (c *Cloud) Zones() []string {
	var out []string
	for _, v := range c.spec.VPCs {
		for _, s := range v.Subnets {
			if !slices.Contains(out, s.Zone) {
				out = append(out, s.Zone)
			}
		}
	}
	slices.Sort(out)
	return out
}

// ZoneIDs returns the IDs of the availability zones by name, such as lab1-az2. As in EC2, the ID cannot be
// derived from the name.
func (c *Cloud) ZoneIDs() map[string]string {
	out := map[string]string{}
	for i, z := range c.Zones() {
		out[z] = fmt.Sprintf("%s-az%d", strings.ReplaceAll(c.region, "-", ""), i+1)
	}
	return out
}
