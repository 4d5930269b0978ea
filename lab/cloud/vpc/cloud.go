package vpc

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/lab/cloud/spec"
)

// Cloud is one virtual cloud: a region of one account. Its methods may be
// called from many goroutines.
type Cloud struct {
	region, account string
	spec            spec.Spec // as completed; not changed
	clock           clock.Clock
	done            chan struct{}
	closeOnce       sync.Once

	mu  sync.Mutex // guards all below; never held across I/O or a subscriber
	rng *rand.Rand

	vpcs      table[VPC]
	subnets   table[Subnet]
	groups    table[SecurityGroup]
	routes    table[RouteTable]
	instances table[Instance]
	enis      table[ENI]

	space4       map[string]*space4             // by subnet ID
	space6       map[string]*space6             // by subnet ID; only subnets with IPv6
	attachedENIs map[string]map[string]struct{} // instance ID to the IDs of its ENIs
	everAttached map[string]map[string]struct{} // like attachedENIs, with those that were once attached
	everHosts    map[string][]string            // the inverse of everAttached: ENI ID to instance IDs
	attachments  map[string]string              // attachment ID to ENI ID
	branches     map[string]map[string]struct{} // trunk ID to the IDs of its branches
	associations map[string]string              // association ID to the branch's ID
	macs         uint32
	tokens       map[string]idempotent

	delays      spec.Delays
	lag         time.Duration // of describe calls
	lagWrites   bool
	imdsLag     time.Duration
	imdsV1      bool
	imdsOff     bool
	credentials credentials
	gate        gate

	timers []timer // by time

	seq            uint64
	queue          []Event
	delivering     bool
	subscribers    []subscriber
	nextSubscriber int
}

// Option changes how a Cloud is made.
type Option func(*Cloud)

// WithClock has the cloud live by another clock than the machine's.
func WithClock(c clock.Clock) Option { return func(l *Cloud) { l.clock = c } }

// WithSeed replaces the spec's seed.
func WithSeed(seed uint64) Option { return func(l *Cloud) { l.spec.Seed = seed } }

// New makes the cloud that s describes, with its instances running. The error
// names every field of the spec that is wrong. Close it when done.
func New(s spec.Spec, opts ...Option) (*Cloud, error) {
	s, err := s.Complete()
	if err != nil {
		return nil, fmt.Errorf("lab spec: %w", err)
	}
	c := &Cloud{
		region: s.Region, account: s.Account, spec: s,
		clock: clock.Real{}, done: make(chan struct{}),
		space4: map[string]*space4{}, space6: map[string]*space6{},
		attachedENIs: map[string]map[string]struct{}{}, everAttached: map[string]map[string]struct{}{}, everHosts: map[string][]string{},
		attachments: map[string]string{}, branches: map[string]map[string]struct{}{}, associations: map[string]string{},
		tokens: map[string]idempotent{},
		lag:    s.Consistency.Describe.D(), lagWrites: s.Consistency.Writes,
		imdsLag: s.IMDS.Delay.D(), imdsV1: *s.IMDS.V1,
	}
	for _, o := range opts {
		o(c)
	}
	c.rng = rand.New(rand.NewPCG(c.spec.Seed, 0x6c6162))
	if c.credentials, err = newCredentials(s, c.spec.Seed); err != nil {
		return nil, fmt.Errorf("lab spec: %w", err)
	}
	c.gate = newGate(s, c.spec.Seed)
	if err := c.build(); err != nil {
		return nil, fmt.Errorf("lab spec: %w", err)
	}
	return c, nil
}

// Close ends the cloud's timers.
func (c *Cloud) Close() { c.closeOnce.Do(func() { close(c.done) }) }

// Done is closed when the cloud is.
func (c *Cloud) Done() <-chan struct{} { return c.done }

// Region is the region's name, such as "lab-1".
func (c *Cloud) Region() string { return c.region }

// Account is the account's number.
func (c *Cloud) Account() string { return c.account }

// Spec is the completed spec that the cloud was made from.
func (c *Cloud) Spec() spec.Spec { return c.spec }

// Clock is the clock that the cloud lives by.
func (c *Cloud) Clock() clock.Clock { return c.clock }

// newID makes an ID such as eni-0a1b2c3d4e5f60718. The lock is held.
func (c *Cloud) newID(prefix string) string {
	return fmt.Sprintf("%s-0%08x%08x", prefix, c.rng.Uint32(), c.rng.Uint32())
}

// newMAC makes a locally administered address that no other ENI of this cloud has.
func (c *Cloud) newMAC() []byte {
	c.macs++
	n := c.macs
	return []byte{0x02, byte(c.spec.Seed), byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
}

// keep is how long a version of a resource may still be asked for. The lock is held.
func (c *Cloud) keep() time.Duration { return max(c.lag, c.imdsLag) }

func (c *Cloud) putENI(e *ENI) { c.enis.put(e.ID, e, c.clock.Now(), c.keep()) }

func (c *Cloud) putInstance(i *Instance) { c.instances.put(i.ID, i, c.clock.Now(), c.keep()) }

// countFree notes a subnet's free count after it changed, unless it is of IPv6 alone. The lock is held.
func (c *Cloud) countFree(subnetID string) {
	s := *c.subnets.get(subnetID)
	if s.IPv6Native() {
		return
	}
	if free := c.space4[subnetID].free; free != s.Free {
		s.Free = free
		c.subnets.put(subnetID, &s, c.clock.Now(), c.keep())
	}
}

// SetDelays changes how long things take from now on.
func (c *Cloud) SetDelays(d spec.Delays) { c.read(func() { c.delays = d }) }

// SetConsistencyDelay makes describe calls see the world of d ago. What is
// already forgotten stays so: set it before the changes that should lag.
func (c *Cloud) SetConsistencyDelay(d time.Duration) { c.read(func() { c.lag = d }) }

// SetIMDSDelay makes the metadata service lag d behind EC2.
func (c *Cloud) SetIMDSDelay(d time.Duration) { c.read(func() { c.imdsLag = d }) }

// SetIMDSv1 allows or refuses metadata requests without a token.
func (c *Cloud) SetIMDSv1(on bool) { c.read(func() { c.imdsV1 = on }) }

// IMDSv1 tells whether metadata requests without a token are answered.
func (c *Cloud) IMDSv1() (on bool) {
	c.read(func() { on = c.imdsV1 })
	return on
}

// IMDSOutage makes the metadata service unreachable, or reachable again.
func (c *Cloud) IMDSOutage(on bool) { c.read(func() { c.imdsOff = on }) }

// IMDSDown tells whether the metadata service is unreachable.
func (c *Cloud) IMDSDown() (down bool) {
	c.read(func() { down = c.imdsOff })
	return down
}
