package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
)

// sim is a node whose cloud carries out plans immediately, with the real allocator.
type sim struct {
	t       rapid.TB
	limits  cloud.Limits
	policy  ipam.Policy
	alloc   *ipam.Allocator[int]
	enis    map[string]*simENI
	subnet  Subnet
	next    netip.Addr
	block   byte
	now     time.Time
	pods    int
	waiting int
	release bool // excess may be released
	made    int
	after   func(Action) // called after each action; may be nil
}

type simENI struct {
	index    int
	phase    Phase
	addrs    []netip.Addr
	prefixes []netip.Prefix
}

var (
	t3small  = cloud.Limits{MaxENIs: 3, IPv4PerENI: 4, Prefixes: true}
	m5xlarge = cloud.Limits{MaxENIs: 4, IPv4PerENI: 15, Prefixes: true}
	c5large  = cloud.Limits{MaxENIs: 3, IPv4PerENI: 10, Prefixes: true}
)

func newSim(t rapid.TB, l cloud.Limits, p ipam.Policy) *sim {
	s := &sim{
		t: t, limits: l, policy: p, alloc: ipam.New[int](ipam.DefaultCooling), enis: map[string]*simENI{},
		subnet: Subnet{ID: "subnet-1", Free: Unlimited, ForNew: true},
		next:   netip.MustParseAddr("10.0.0.4"), now: time.Unix(0, 0),
	}
	s.enis["eni-0"] = &simENI{phase: Attached}
	s.sync()
	return s
}

// converge plans and acts until there is nothing left to do.
func (s *sim) converge() []Action {
	s.t.Helper()
	var done []Action
	for range 100 {
		plan := Make(s.limits, s.policy, s.state()).Actions
		if len(plan) == 0 {
			return done
		}
		for _, a := range plan {
			s.act(a)
			if s.after != nil {
				s.after(a)
			}
			done = append(done, a)
		}
		s.sync()
	}
	s.t.Fatalf("no fixed point after 100 plans, last actions: %v", done[len(done)-5:])
	return nil
}

func (s *sim) state() State {
	st := State{Waiting: s.waiting, Subnets: []Subnet{s.subnet}}
	counts := map[string]ipam.GroupCounts{}
	for _, g := range s.alloc.Groups() {
		counts[g.ID] = g
	}
	for id, e := range s.enis {
		c := counts[id]
		st.ENIs = append(st.ENIs, ENI{
			ID: id, Subnet: "subnet-1", Index: e.index, Phase: e.phase, Primary: id == "eni-0", Ours: true,
			Amount: cloud.Amount{Addresses: len(e.addrs), Prefixes: len(e.prefixes)}, Used: c.Used, Cooling: c.Cooling,
			Free: cloud.Amount{Addresses: c.FreeSingles, Prefixes: c.FreePrefixes},
		})
	}
	if s.release {
		st.Release, st.Moves = Unlimited, true
	}
	return st
}

func (s *sim) act(a Action) {
	e := s.enis[a.ENI]
	switch a.Kind {
	case Create:
		s.made++
		e = &simENI{index: a.Index, phase: Detached}
		s.enis[fmt.Sprintf("eni-%d", s.made)] = e
		s.give(e, a)
	case Attach:
		e.phase, e.index = Attached, a.Index
	case Assign:
		s.give(e, a)
	case Unassign:
		gone := map[netip.Addr]bool{}
		for _, x := range s.alloc.Withdraw(a.ENI, a.Addresses) {
			gone[x] = true
		}
		for _, p := range s.alloc.WithdrawPrefixes(a.ENI, a.Prefixes) {
			gone[p.Addr()] = true
		}
		e.addrs = slices.DeleteFunc(e.addrs, func(x netip.Addr) bool { return gone[x] })
		e.prefixes = slices.DeleteFunc(e.prefixes, func(p netip.Prefix) bool { return gone[p.Addr()] })
	case Detach:
		if err := s.alloc.WithdrawGroup(a.ENI); err != nil {
			s.t.Fatalf("plan detaches an ENI in use: %v", err)
		}
		s.alloc.LoseGroup(a.ENI)
		e.phase = Detached
	case Delete:
		delete(s.enis, a.ENI)
	default:
		s.t.Fatalf("unexpected action %v", a)
	}
	if e != nil && len(e.addrs)+len(e.prefixes) > slots(ipfamily.IPv4, s.limits) {
		s.t.Fatalf("%v exceeds the limits of the ENI", a)
	}
	if len(s.enis) > s.limits.MaxENIs {
		s.t.Fatalf("%v exceeds the number of ENIs of the instance", a)
	}
}

func (s *sim) give(e *simENI, a Action) {
	for range a.Addresses {
		e.addrs = append(e.addrs, s.next)
		s.next = s.next.Next()
	}
	for range a.Prefixes {
		s.block++
		e.prefixes = append(e.prefixes, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, s.block, 0}), 28))
	}
}

func (s *sim) sync() {
	for id, e := range s.enis {
		if e.phase == Attached {
			s.alloc.SetGroup(ipam.Group{ID: id, Index: e.index, Addresses: e.addrs, Prefixes: e.prefixes})
			s.alloc.SetReady(id, e.index >= s.policy.FirstInterfaceIndex)
		}
	}
	for s.waiting > 0 {
		if _, ok := s.alloc.Take(s.pods, s.now); !ok {
			return
		}
		s.pods++
		s.waiting--
	}
}

// runPods starts pods one by one until n run, and carries out all plans after each.
func (s *sim) runPods(n int) {
	s.t.Helper()
	for s.pods < n {
		s.waiting++
		s.sync()
		s.converge()
		if s.waiting > 0 {
			s.t.Fatalf("pod %d of %d never got an address", s.pods+1, n)
		}
	}
}

// with returns the sim with n pods that were started one by one.
func (s *sim) with(n int) *sim {
	s.t.Helper()
	s.converge()
	s.runPods(n)
	return s
}

// wants checks the layout.
func (s *sim) wants(when, layout string) {
	s.t.Helper()
	if got := s.layout(); got != layout {
		s.t.Errorf("%s: layout = %s, want %s", when, got, layout)
	}
}

// layout returns the usable addresses of each ENI by device index: "3,3,1".
func (s *sim) layout() string {
	st := s.state()
	var out []string
	for _, e := range sorted(st.ENIs, func(ENI) bool { return true }, byIndex) {
		out = append(out, fmt.Sprint(e.total(ipfamily.OnlyIPv4)))
	}
	return strings.Join(out, ",")
}

func addresses(n int) cloud.Amount { return cloud.Amount{Addresses: n} }

func blocks(n int) cloud.Amount { return cloud.Amount{Prefixes: n} }

func unix(seconds int) time.Time { return time.Unix(1_000_000+int64(seconds), 0) }
