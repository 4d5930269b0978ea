package control

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/berthnet/berth/lab/cloud/ec2api"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

// Kind is a kind of fault.
type Kind struct {
	Name    string
	Args    string // arguments after the name, for help
	Doc     string
	Example string
	action  bool   // the first argument is an action
	value   bool   // an argument follows
	inject  string // the kind of spec.Fault, which supports a count; "" if apply injects the fault
	apply   func(c *vpc.Cloud, r FaultRequest) (undo func(), err error)
}

// Kinds lists every kind of fault, in the order of the help text.
var Kinds = []Kind{
	{"throttle", "ACTION RATE", "limit calls of ACTION to RATE per second (a bucket of one token)", "throttle AssignPrivateIpAddresses 0.5", true, true, "", throttle},
	{"error", "ACTION CODE", "fail calls of ACTION with the EC2 error CODE", "error CreateNetworkInterface InternalError --count 3", true, true, "error", nil},
	{"lost-reply", "ACTION", "process calls of ACTION, but close the connection without a reply", "lost-reply AttachNetworkInterface --count 1", true, false, "lostReply", nil},
	{"lost-request", "ACTION", "close the connection of calls of ACTION without any effect", "lost-request 'Describe*' --count 2", true, false, "lostRequest", nil},
	{"deny", "ACTION", "deny ACTION to all callers", "deny CreateNetworkInterface", true, false, "", deny},
	{"latency", "ACTION DURATION", "delay calls of ACTION", "latency '*' 500ms", true, true, "", latency},
	{"outage", "", "make the EC2 endpoint unreachable", "outage", false, false, "", toggle(func(c *vpc.Cloud, on bool) { c.API.Outage(on) })},
	{"imds-outage", "", "make the metadata service unreachable", "imds-outage", false, false, "", toggle(func(c *vpc.Cloud, on bool) { c.IMDS.Outage(on) })},
	{"imds-delay", "DURATION", "delay the data of the metadata service", "imds-delay 30s", false, true, "", delay(func(c *vpc.Cloud, d time.Duration) { c.IMDS.SetDelay(d) }, func(s spec.Spec) spec.Duration { return s.IMDS.Delay })},
	{"describe-delay", "DURATION", "make describe calls return the state of DURATION ago", "describe-delay 5s", false, true, "", delay((*vpc.Cloud).SetConsistencyDelay, func(s spec.Spec) spec.Duration { return s.Consistency.Describe })},
}

// KindNamed returns the kind with a name.
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

// Request parses the arguments that follow the kind's name.
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
		return r, fmt.Errorf("fault %s: want arguments %q, got %q", k.Name, k.Args, args)
	}
	return r, k.check(r)
}

// check validates a request of this kind.
func (k Kind) check(r FaultRequest) error {
	covers := func(action string) bool { return vpc.Covers(r.Action, action) }
	switch {
	case k.action && !slices.ContainsFunc(ec2api.Actions(), covers):
		return fmt.Errorf("fault %s: %q covers no action of the lab; want one of %v or a pattern", k.Name, r.Action, ec2api.Actions())
	case r.Count < 0:
		return fmt.Errorf("fault %s: count %d: want the number of calls to affect, 0 for all", k.Name, r.Count)
	case r.Count > 0 && k.inject == "":
		return fmt.Errorf("fault %s: a count does not apply; the fault stays until it is cleared", k.Name)
	}
	return nil
}

func throttle(c *vpc.Cloud, r FaultRequest) (func(), error) {
	rate, err := strconv.ParseFloat(r.Value, 64)
	if err != nil || rate <= 0 {
		return nil, fmt.Errorf("throttle %s: rate %q: want calls per second, above 0", r.Action, r.Value)
	}
	c.API.SetRateLimit(r.Action, spec.RateLimit{Bucket: 1, Refill: rate})
	return func() { c.API.ClearRateLimit(r.Action) }, nil
}

func deny(c *vpc.Cloud, r FaultRequest) (func(), error) {
	c.API.Deny(r.Action)
	return func() { c.API.Allow(r.Action) }, nil
}

func latency(c *vpc.Cloud, r FaultRequest) (func(), error) {
	d, err := duration(r)
	if err != nil {
		return nil, err
	}
	c.API.SetLatency(r.Action, d)
	return func() { c.API.SetLatency(r.Action, c.Spec().Latencies[r.Action].D()) }, nil
}

func toggle(set func(*vpc.Cloud, bool)) func(*vpc.Cloud, FaultRequest) (func(), error) {
	return func(c *vpc.Cloud, _ FaultRequest) (func(), error) {
		set(c, true)
		return func() { set(c, false) }, nil
	}
}

// delay returns the apply function of a kind that sets a duration; undo restores the spec's.
func delay(set func(*vpc.Cloud, time.Duration), normal func(spec.Spec) spec.Duration) func(*vpc.Cloud, FaultRequest) (func(), error) {
	return func(c *vpc.Cloud, r FaultRequest) (func(), error) {
		d, err := duration(r)
		if err != nil {
			return nil, err
		}
		set(c, d)
		return func() { set(c, normal(c.Spec()).D()) }, nil
	}
}

func duration(r FaultRequest) (time.Duration, error) {
	d, err := time.ParseDuration(r.Value)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%s: duration %q: want a duration such as 500ms", r.Kind, r.Value)
	}
	return d, nil
}

// faults holds the active faults.
type faults struct {
	cloud *vpc.Cloud // nil if the lab has no EC2

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
	if err := k.check(r); err != nil {
		return err
	}
	if f.cloud == nil {
		return fmt.Errorf("fault %s: this lab has no EC2", r.Kind)
	}
	f.clear(func(o FaultRequest) bool { return o.Kind == r.Kind && o.Action == r.Action })
	apply := k.apply
	if k.inject != "" {
		apply = func(c *vpc.Cloud, r FaultRequest) (func(), error) {
			return c.API.Inject(spec.Fault{Action: r.Action, Kind: k.inject, Code: r.Value, Count: r.Count})
		}
	}
	undo, err := apply(f.cloud, r)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, activeFault{r, undo})
	return nil
}

// clear removes the faults that match, and returns their number.
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

// left returns the number of calls that a counted fault will still affect.
func (f *faults) left(r FaultRequest) int {
	k, _ := KindNamed(r.Kind)
	for _, in := range f.cloud.API.Faults() {
		if in.Kind == k.inject && in.Action == r.Action {
			return in.Count
		}
	}
	return 0
}

// strings describes the active faults.
func (f *faults) strings() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := []string{}
	f.list = slices.DeleteFunc(f.list, func(a activeFault) bool { return a.Count > 0 && f.left(a.FaultRequest) == 0 })
	for _, a := range f.list {
		s := a.Kind
		for _, part := range []string{a.Action, a.Value} {
			if part != "" {
				s += " " + part
			}
		}
		if a.Count > 0 {
			s += fmt.Sprintf(" (next %d calls)", f.left(a.FaultRequest))
		}
		out = append(out, s)
	}
	return out
}
