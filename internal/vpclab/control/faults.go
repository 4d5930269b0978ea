package control

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/vpclab/spec"
	"github.com/berthnet/berth/internal/vpclab/vpc"
)

// Kind is one way to make the cloud misbehave.
type Kind struct {
	Name    string
	Args    string // as a user types them after the name
	Doc     string
	Example string
	action  bool // the first argument is an action
	value   bool // an argument follows
	apply   func(c *vpc.Cloud, r FaultRequest) (undo func(), err error)
}

// Kinds lists every kind of fault, in the order in which help shows them.
var Kinds = []Kind{
	{"throttle", "ACTION RATE", "limit calls of ACTION to RATE a second (a bucket of one token)", "throttle AssignPrivateIpAddresses 0.5", true, true, throttle},
	{"error", "ACTION CODE", "answer calls of ACTION with the EC2 error CODE", "error CreateNetworkInterface InternalError --count 3", true, true, answer},
	{"lost-reply", "ACTION", "carry calls of ACTION out and close the connection without a reply", "lost-reply AttachNetworkInterface --count 1", true, false, inject("lostReply")},
	{"lost-request", "ACTION", "close the connection of calls of ACTION before anything happens", "lost-request 'Describe*' --count 2", true, false, inject("lostRequest")},
	{"deny", "ACTION", "take the permission for ACTION away from everybody", "deny CreateNetworkInterface", true, false, deny},
	{"latency", "ACTION DURATION", "delay calls of ACTION", "latency '*' 500ms", true, true, latency},
	{"outage", "", "make the EC2 endpoint unreachable", "outage", false, false, toggle((*vpc.Cloud).Outage)},
	{"imds-outage", "", "make the metadata service unreachable", "imds-outage", false, false, toggle((*vpc.Cloud).IMDSOutage)},
	{"imds-delay", "DURATION", "make the metadata service lag behind EC2", "imds-delay 30s", false, true, delay((*vpc.Cloud).SetIMDSDelay)},
	{"describe-delay", "DURATION", "make describe calls see the world of DURATION ago", "describe-delay 5s", false, true, delay((*vpc.Cloud).SetConsistencyDelay)},
}

// KindNamed finds a kind.
func KindNamed(name string) (Kind, error) {
	var names []string
	for _, k := range Kinds {
		if k.Name == name {
			return k, nil
		}
		names = append(names, k.Name)
	}
	return Kind{}, fmt.Errorf("fault %q: want one of %v", name, names)
}

// Request reads the arguments that follow the kind's name.
func (k Kind) Request(args []string, count int) (FaultRequest, error) {
	r := FaultRequest{Kind: k.Name, Count: count}
	rest := args
	take := func(want bool, into *string) bool {
		if !want {
			return true
		}
		if len(rest) == 0 {
			return false
		}
		*into, rest = rest[0], rest[1:]
		return true
	}
	if !take(k.action, &r.Action) || !take(k.value, &r.Value) || len(rest) > 0 {
		return r, fmt.Errorf("fault %s: want %q after it, got %q", k.Name, k.Args, args)
	}
	return r, nil
}

func throttle(c *vpc.Cloud, r FaultRequest) (func(), error) {
	rate, err := strconv.ParseFloat(r.Value, 64)
	if err != nil || rate <= 0 {
		return nil, fmt.Errorf("throttle %s: rate %q: want calls a second, above 0", r.Action, r.Value)
	}
	c.SetRateLimit(r.Action, spec.RateLimit{Bucket: 1, Refill: rate})
	return func() { c.ClearRateLimit(r.Action) }, nil
}

func answer(c *vpc.Cloud, r FaultRequest) (func(), error) {
	return c.Inject(spec.Fault{Action: r.Action, Kind: "error", Code: r.Value, Count: r.Count})
}

func inject(kind string) func(*vpc.Cloud, FaultRequest) (func(), error) {
	return func(c *vpc.Cloud, r FaultRequest) (func(), error) {
		return c.Inject(spec.Fault{Action: r.Action, Kind: kind, Count: r.Count})
	}
}

func deny(c *vpc.Cloud, r FaultRequest) (func(), error) {
	c.Deny(r.Action)
	return func() { c.Allow(r.Action) }, nil
}

func latency(c *vpc.Cloud, r FaultRequest) (func(), error) {
	d, err := duration(r)
	if err != nil {
		return nil, err
	}
	c.SetLatency(r.Action, d)
	return func() { c.SetLatency(r.Action, 0) }, nil
}

func toggle(set func(*vpc.Cloud, bool)) func(*vpc.Cloud, FaultRequest) (func(), error) {
	return func(c *vpc.Cloud, _ FaultRequest) (func(), error) {
		set(c, true)
		return func() { set(c, false) }, nil
	}
}

func delay(set func(*vpc.Cloud, time.Duration)) func(*vpc.Cloud, FaultRequest) (func(), error) {
	return func(c *vpc.Cloud, r FaultRequest) (func(), error) {
		d, err := duration(r)
		if err != nil {
			return nil, err
		}
		set(c, d)
		return func() { set(c, 0) }, nil
	}
}

func duration(r FaultRequest) (time.Duration, error) {
	d, err := time.ParseDuration(r.Value)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%s: duration %q: want a length of time such as 500ms", r.Kind, r.Value)
	}
	return d, nil
}

// faults are those in force.
type faults struct {
	cloud *vpc.Cloud

	mu   sync.Mutex // guards list
	list []activeFault
}

type activeFault struct {
	FaultRequest
	undo func()
}

func (f *faults) add(r FaultRequest) error {
	k, err := KindNamed(r.Kind)
	if err != nil {
		return err
	}
	f.clear(func(o FaultRequest) bool { return o.Kind == r.Kind && o.Action == r.Action })
	undo, err := k.apply(f.cloud, r)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, activeFault{r, undo})
	return nil
}

// clear undoes the faults that match.
func (f *faults) clear(match func(FaultRequest) bool) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	var kept []activeFault
	for _, a := range f.list {
		if match(a.FaultRequest) {
			a.undo()
		} else {
			kept = append(kept, a)
		}
	}
	n := len(f.list) - len(kept)
	f.list = kept
	return n
}

// strings describes what is in force.
func (f *faults) strings() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := []string{}
	for _, a := range f.list {
		s := a.Kind
		for _, part := range []string{a.Action, a.Value} {
			if part != "" {
				s += " " + part
			}
		}
		if a.Count > 0 {
			s += fmt.Sprintf(" (first %d calls)", a.Count)
		}
		out = append(out, s)
	}
	return out
}
