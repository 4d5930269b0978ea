package eni

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/test/harness/check"
)

// Settings are applied immediately, and reverted if they do not suit the instance, which may only become known with
// its limits.
func TestChanges(t *testing.T) {
	unfit := func(inv *Inventory) error {
		if inv.Limits.MaxENIs < 3 {
			return errors.New("too small")
		}
		return nil
	}
	for _, c := range []struct {
		name      string
		limits    []int // ENI limit before each pass; 0 if unknown
		configure error
		want      string // error; empty if applied
		passes    int    // passes until Taken is called
	}{
		{"accepted", []int{3}, nil, "", 1},
		{"rejected", []int{2}, nil, "too small", 1},
		{"accepted once limits are known", []int{0, 0, 3}, nil, "", 3},
		{"rejected once limits are known", []int{0, 2}, nil, "too small", 2},
		{"invalid settings", []int{0}, errors.New("Policy: odd"), "Policy: odd", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			applied, known := Settings{Zone: "old"}, 0
			r := changes{current: func() Settings { return applied }}
			r.configure = func(_ context.Context, s Settings) error {
				if c.configure != nil && s.Zone == "new" {
					return c.configure
				}
				applied = s
				return nil
			}
			r.inventory = func() (Inventory, bool) { return Inventory{Limits: cloud.Limits{MaxENIs: known}}, known > 0 }
			calls, got := 0, ""
			taken := func(err error) {
				if calls++; err != nil {
					got = err.Error()
				}
			}
			r.put(Change{Settings: Settings{Zone: "older"}, Taken: func(error) { t.Error("Taken called for a superseded change") }})
			r.put(Change{Settings: Settings{Zone: "new"}, Fits: unfit, Taken: taken})
			for pass, n := range c.limits {
				known = n
				if r.apply(t.Context()); (calls > 0) != (pass+1 >= c.passes) {
					t.Errorf("pass %d: Taken was called %d times, want the first call in pass %d", pass+1, calls, c.passes)
				}
			}
			if want := map[bool]string{true: "new", false: "old"}[c.want == ""]; applied.Zone != want || got != c.want || calls != 1 {
				t.Errorf("zone = %s, error = %q, Taken called %d times; want %s, %q, once", applied.Zone, got, calls, want, c.want)
			}
		})
	}
}

// An ENI that EC2 refuses to attach is given up after several attempts. After the second such ENI, none is attached
// for a while.
func TestRefusedAttachments(t *testing.T) {
	r, _ := New(Config{InstanceID: "i-1", Cluster: "test", Cloud: struct{ cloud.API }{}, Node: struct{ Node }{}, Clock: clock.NewFake(unix(0))})
	f := &r.refusals
	refuse := func(id string, class cloud.Class, times int) (counted int) {
		k := newKnown(facts{ID: id})
		for range times {
			if _, ok := f.attach(k, plan.Attach, class, unix(0)); ok {
				counted++
			}
		}
		return counted
	}
	if n := refuse("eni-0", cloud.LimitReached, 9) + refuse("eni-0", cloud.Permission, 9); n > 0 || f.pods.abandoned > 0 {
		t.Errorf("%d refusals unrelated to the ENI were counted", n)
	}
	if refuse("eni-1", cloud.Bug, attachTries); f.pods.abandoned != 1 || f.pods.full(unix(1)) {
		t.Errorf("refusals after one ENI = %+v, want one ENI given up and attaching still allowed", f.pods)
	}
	if refuse("eni-2", cloud.Conflict, attachTries); !f.pods.stuck(unix(1)) || f.trunk.full(unix(1)) {
		t.Errorf("refusals after two ENIs = %+v, of the trunk %+v, want only attaching for pods stopped", f.pods, f.trunk)
	}
	if f.attached(plan.Attach); f.pods.stuck(unix(1)) {
		t.Error("attaching is still stopped after a success")
	}
	k := newKnown(facts{ID: "eni-3"})
	k.attachReplyLost = unix(0)
	if _, ok := f.attach(k, plan.Attach, cloud.Conflict, unix(1)); ok || k.refusals > 0 {
		t.Error("conflict soon after a lost reply was counted, although the ENI may be attached")
	}
	if f.trunkBusy(plan.Detach, cloud.Conflict, unix(0)) || !f.trunkBusy(plan.DetachTrunk, cloud.Conflict, unix(0)) || !f.trunkBusyUntil.After(unix(0)) {
		t.Errorf("trunkBusyUntil = %v, want it set only by DetachTrunk", f.trunkBusyUntil)
	}
}

// A recorded creation is repeated unless its ENI is in view, it belongs to another instance, or it is too old.
func TestResumedCreation(t *testing.T) {
	for _, c := range []struct {
		name     string
		instance string
		age      time.Duration
		seen     bool
		want     bool
	}{
		{"lost", "i-1", time.Minute, false, true},
		{"ENI in view", "i-1", time.Minute, true, false},
		{"another instance", "i-2", time.Minute, false, false},
		{"too old", "i-1", 2 * time.Hour, false, false},
	} {
		cfg := &Config{InstanceID: c.instance, Cluster: "test", Intents: &MemoryIntents{}, Clock: clock.NewFake(unix(0).Add(c.age))}
		begin := &creations{cfg: cfg}
		i := check.Must(begin.begin(plan.Action{Kind: plan.Create, Subnet: "s1", Index: 2}, nil, unix(0)))(t)
		cfg.InstanceID = "i-1"
		v := newView(time.Minute, 0)
		if c.seen {
			v.enis["eni-1"] = newKnown(facts{ID: "eni-1", owner: ownership{createdTag: i.Request.Tags[TagCreatedAt]}})
		}
		again := &creations{cfg: cfg, view: v}
		p := again.resume()
		if got := p != nil; got != c.want || c.want && (p.Index != 2 || !p.lost || p.intent.Request.ClientToken != i.Request.ClientToken) {
			t.Errorf("%s: resume() = %+v", c.name, p)
		}
		if _, kept, _ := cfg.Intents.Load(); kept != c.want || !again.resumed {
			t.Errorf("%s: intent still recorded = %v", c.name, kept)
		}
	}
}

// publishedNode keeps all publications, and fails the first ones.
type publishedNode struct {
	Node
	fail      int
	published []Inventory
}

func (*publishedNode) Usage() Usage            { return Usage{} }
func (*publishedNode) WithdrawENI(string) bool { return true }

func (n *publishedNode) Publish(_ context.Context, inv Inventory) error {
	if n.published = append(n.published, inv); len(n.published) <= n.fail {
		return errors.New("no space left")
	}
	return nil
}

// publishing returns a reconciler with one known ENI, attached and owned by Berth.
func publishing(t *testing.T, cfg Config) (*Reconciler, *known) {
	cfg.InstanceID, cfg.Cluster, cfg.Clock = "i-1", "test", clock.NewFake(unix(0))
	r := check.Must(New(cfg))(t)
	k := newKnown(factsOf(at(eniOf(2, "10.0.0.5"), 1, "a-2"), "test"))
	k.owner.tagged = true
	r.view.enis[k.ID] = k
	return r, k
}

// If a detachment cannot be recorded, the ENI is returned to the node before any other cloud call.
func TestUnrecordedDetachment(t *testing.T) {
	for name, prepare := range map[string]func(*Reconciler, *step, *known) bool{
		"first": func(r *Reconciler, p *step, _ *known) bool {
			return r.actor.releases.prepare(t.Context(), p, unix(1))
		},
		"again": func(r *Reconciler, p *step, k *known) bool {
			r.cfg.process = ofFleet
			return r.actor.releases.prepareAgain(t.Context(), p, k, unix(1))
		},
	} {
		n := &publishedNode{fail: 1}
		r, k := publishing(t, Config{Cloud: struct{ cloud.API }{}, Node: n})
		if prepare(r, &step{Action: plan.Action{Kind: plan.Detach, ENI: k.ID}}, k) {
			t.Errorf("%s: prepare permits the call", name)
		}
		if len(n.published) != 2 || len(n.published[0].ENIs) != 0 || len(n.published[1].ENIs) != 1 {
			t.Errorf("%s: published %+v, want one inventory without the ENI, then one with it", name, n.published)
		}
	}
}

// assigning is a cloud that assigns an address, and an observer that records the publications so far.
type assigning struct {
	cloud.API
	noObserver
	node  *publishedNode
	acted int // inventories published when the assignment was reported
}

func (*assigning) AssignAddresses(context.Context, string, cloud.Amount) ([]netip.Prefix, error) {
	return prefixes("10.0.0.9/32"), nil
}

func (c *assigning) Acted(plan.Action, cloud.Class, error, time.Duration) {
	c.acted = len(c.node.published)
}

// A newly assigned address is published immediately: otherwise the reply to another node could name it, too.
func TestReplyIsPublishedFirst(t *testing.T) {
	c := &assigning{node: &publishedNode{}}
	r, k := publishing(t, Config{Cloud: c, Node: c.node, Observer: c})
	r.actor.try(t.Context(), &step{Action: plan.Action{Kind: plan.Assign, ENI: k.ID, Amount: cloud.Amount{Addresses: 1}}})
	if c.acted != 1 || len(c.node.published) != 1 || len(c.node.published[0].ENIs[0].Addresses) != 1 {
		t.Errorf("%d inventories published before the step was reported, want 1; all: %+v", c.acted, c.node.published)
	}
}

// Settings are published before they are reported as applied.
func TestChangeIsPublishedFirst(t *testing.T) {
	n, published := &publishedNode{}, 0
	r, _ := publishing(t, Config{Cloud: struct{ cloud.API }{}, Node: n})
	r.view.freshness.observed(unix(0), unix(60))
	r.instance.learned("m5.large", cloud.Limits{MaxENIs: 3})
	s := r.cfg.Settings
	s.Policy.FirstInterfaceIndex = 2
	r.Reconfigure(Change{Settings: s, Taken: func(error) { published = len(n.published) }})
	if r.takeNews(t.Context(), unix(1)); published != 1 || n.published[0].ENIs[0].Serves {
		t.Errorf("%d inventories published before Taken, want 1; all: %+v", published, n.published)
	}
}
