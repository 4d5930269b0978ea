// Package vpc keeps the books of a virtual cloud: its VPCs, subnets, security
// groups, instances and network interfaces, and the rules by which EC2 lets
// them change. It speaks no protocol; packages ec2 and imds serve it over HTTP
// and the fabric turns its events into links and routes.
//
// A Cloud keeps everything behind one lock. Each resource is an immutable
// value with a history, so that a describe call or the metadata service can be
// answered with the world as it was a moment ago.
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

// Cloud is one virtual cloud: a region of one account. Its parts own the state; all share the
// world's lock. Its methods, and those of its parts, may be called from many goroutines.
type Cloud struct {
	region, account string
	spec            spec.Spec // completed; not changed

	world       *world
	store       *store
	pools       *pools
	attachments *attachments

	ENIs      *ENIs      // network interfaces, their addresses, attachments and associations
	Instances *Instances // virtual machines
	API       *API       // what happens to a call before its own logic: throttling, faults, permissions
	Keys      *Keys      // credentials of users and roles
	IMDS      *IMDS      // settings of the metadata service
}

// Option changes how a Cloud is made.
type Option func(*Cloud)

// WithClock has the cloud live by another clock than the machine's.
func WithClock(c clock.Clock) Option { return func(l *Cloud) { l.world.clock = c } }

// WithSeed replaces the spec's seed.
func WithSeed(seed uint64) Option { return func(l *Cloud) { l.spec.Seed = seed } }

// New makes the cloud that s describes, with its instances running. The error
// names every field of the spec that is wrong. Close it when done.
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

// Close ends the cloud's timers.
func (c *Cloud) Close() { c.world.close() }

// Done is closed when the cloud is.
func (c *Cloud) Done() <-chan struct{} { return c.world.done }

// Region is the region's name, such as "lab-1".
func (c *Cloud) Region() string { return c.region }

// Account is the account's number.
func (c *Cloud) Account() string { return c.account }

// Spec is the completed spec that the cloud was made from.
func (c *Cloud) Spec() spec.Spec { return c.spec }

// Clock is the clock that the cloud lives by.
func (c *Cloud) Clock() clock.Clock { return c.world.clock }

// SetDelays changes how long things take from now on.
func (c *Cloud) SetDelays(d spec.Delays) { c.world.read(func() { c.world.delays = d }) }

// SetConsistencyDelay makes describe calls see the world of d ago. What is
// already forgotten stays so: set it before the changes that should lag.
func (c *Cloud) SetConsistencyDelay(d time.Duration) { c.world.read(func() { c.store.lag = d }) }

// IMDS are the settings of the metadata service. The world's lock guards them.
type IMDS struct {
	store *store
	v1    bool // requests without a token are answered
	off   bool // it is unreachable
}

// SetDelay makes the metadata service lag d behind EC2.
func (m *IMDS) SetDelay(d time.Duration) { m.store.world.read(func() { m.store.imdsLag = d }) }

// SetV1 allows or refuses metadata requests without a token.
func (m *IMDS) SetV1(on bool) { m.store.world.read(func() { m.v1 = on }) }

// V1 reports whether metadata requests without a token are answered.
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

// Zones are the names of the region's availability zones, those of the spec's
// subnets, in order.
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

// ZoneIDs are the IDs of the availability zones by name, such as lab1-az2. As
// with EC2 they say nothing of the name: they count the zones.
func (c *Cloud) ZoneIDs() map[string]string {
	out := map[string]string{}
	for i, z := range c.Zones() {
		out[z] = fmt.Sprintf("%s-az%d", strings.ReplaceAll(c.region, "-", ""), i+1)
	}
	return out
}
