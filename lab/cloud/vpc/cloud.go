// Package vpc is a virtual EC2 cloud in memory: VPCs, subnets, security groups, instances and network
// interfaces, and the rules by which EC2 lets them change. It has no protocol: packages ec2api and imds
// serve it over HTTP, and the fabric turns its events into links and routes.
//
// One lock guards a Cloud. Each resource is an immutable value with a history, so that describe calls and
// the metadata service can lag behind.
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

// Cloud is a region of one account. Its parts own the state and share the lock of the world. All methods
// may be called from many goroutines.
type Cloud struct {
	region, account string
	spec            spec.Spec // completed; not changed

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

// Option changes how a Cloud is made.
type Option func(*Cloud)

// WithClock sets another clock than the machine's.
func WithClock(c clock.Clock) Option { return func(l *Cloud) { l.world.clock = c } }

// WithSeed replaces the spec's seed.
func WithSeed(seed uint64) Option { return func(l *Cloud) { l.spec.Seed = seed } }

// New makes the cloud that s describes, with its instances running. The error names all invalid fields
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

// Clock is the clock of the cloud.
func (c *Cloud) Clock() clock.Clock { return c.world.clock }

// SetDelays changes the delays from now on.
func (c *Cloud) SetDelays(d spec.Delays) { c.world.read(func() { c.world.delays = d }) }

// SetConsistencyDelay makes describe calls lag d behind. Set it before the changes that should lag: older
// versions may be gone already.
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

// Zones are the names of the availability zones of the spec's subnets, in order.
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

// ZoneIDs are the IDs of the availability zones by name, such as lab1-az2. As with EC2, the ID does not
// follow from the name.
func (c *Cloud) ZoneIDs() map[string]string {
	out := map[string]string{}
	for i, z := range c.Zones() {
		out[z] = fmt.Sprintf("%s-az%d", strings.ReplaceAll(c.region, "-", ""), i+1)
	}
	return out
}
