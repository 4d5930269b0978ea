package vpc

import (
	"maps"
	"math/rand/v2"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/lab/cloud/spec"
)

// Call is one API call as it arrives.
type Call struct {
	Action    string
	Principal Principal
	Params    map[string][]string
	// Unbounded: a describe call with neither filters nor pages, which has a
	// smaller bucket of its own.
	Unbounded bool
	// Targets are the resources that it names, for actions whose permission may
	// depend on them.
	Targets []Target
}

// Verdict is what becomes of a call before its own logic runs.
type Verdict struct {
	Latency     time.Duration             // to wait before anything else
	LoseRequest bool                      // close the connection; nothing happens
	Err         *Error                    // answer this
	LoseReply   bool                      // do it, then close the connection without a reply
	Falsify     func(reply []byte) []byte // do it, then change what is answered; nil: as it is
}

// CallStats counts the calls of one action. Calls made during an outage never
// arrive and are not counted.
type CallStats struct {
	Count        int            // all that arrived, lost ones included
	Errors       map[string]int // by EC2 error code
	LostRequests int
	LostReplies  int
}

// gate is what stands before the books: throttling, permissions and faults.
type gate struct {
	rng       *rand.Rand
	throttle  bool
	limits    map[string]spec.RateLimit
	buckets   map[string]*bucket
	denied    map[string]bool // action patterns that nobody may call
	latencies map[string]spec.Duration
	faults    []*fault
	met       map[string]int // faults that calls have met, by kind
	outage    bool
	stats     map[string]*CallStats
	log       callLog
}

type fault struct {
	spec.Fault
	left    int
	skip    int
	pattern *regexp.Regexp
}

func newFault(f spec.Fault) *fault {
	n := &fault{Fault: f, left: f.Count, skip: f.Skip}
	if f.Pattern != "" {
		n.pattern = regexp.MustCompile(f.Pattern) // spec.CheckFault saw to it
	}
	return n
}

func newGate(s spec.Spec, seed uint64) gate {
	g := gate{
		rng: rand.New(rand.NewPCG(seed, 0x6661756c74)), throttle: s.Throttle == "documented",
		limits: maps.Clone(s.RateLimits), buckets: map[string]*bucket{}, denied: map[string]bool{},
		latencies: maps.Clone(s.Latencies), stats: map[string]*CallStats{}, met: map[string]int{},
	}
	for _, f := range s.Faults {
		g.faults = append(g.faults, newFault(f))
	}
	return g
}

// Covers tells whether an action pattern such as "Describe*" or
// "ec2:AttachNetworkInterface" covers an action. IAM ignores case.
func Covers(pattern, action string) bool {
	pattern = strings.TrimPrefix(strings.ToLower(pattern), "ec2:")
	ok, err := path.Match(pattern, strings.ToLower(action))
	return err == nil && ok
}

// Admit decides about a call: throttled, met by a fault, not permitted, or
// free to go on. The handler obeys the verdict and then calls Finish.
func (c *Cloud) Admit(call Call) (v Verdict) {
	c.read(func() {
		g := &c.gate
		for p, d := range g.latencies {
			if Covers(p, call.Action) {
				v.Latency += d.D()
			}
		}
		if !g.takeToken(call, c.clock.Now()) {
			v.Err = throttled()
			return
		}
		if g.meetFaults(call.Action, &v); v.Err != nil || v.LoseRequest {
			return
		}
		v.Err = c.permit(call)
	})
	return v
}

func throttled() *Error {
	return &Error{"RequestLimitExceeded", http.StatusServiceUnavailable, "Request limit exceeded."}
}

// meetFaults lets the first fault that applies shape the verdict; latency adds up.
func (g *gate) meetFaults(action string, v *Verdict) {
	for i := 0; i < len(g.faults); i++ {
		f := g.faults[i]
		if !Covers(f.Action, action) {
			continue
		}
		if f.skip > 0 {
			f.skip--
			continue
		}
		if f.Probability > 0 && f.Probability < 1 && g.rng.Float64() >= f.Probability {
			continue
		}
		if f.Count > 0 {
			if f.left--; f.left == 0 {
				g.faults = slices.Delete(g.faults, i, i+1)
				i--
			}
		}
		g.met[f.Kind]++
		switch f.Kind {
		case "latency":
			v.Latency += f.Latency.D()
			continue
		case "error":
			v.Err = f.error()
		case "throttle":
			v.Err = throttled()
		case "lostRequest":
			v.LoseRequest = true
		case "lostReply":
			v.LoseReply = true
		case "wrongReply":
			v.Falsify = f.falsify
		}
		return
	}
}

// falsify replaces what the fault's pattern finds in a reply.
func (f *fault) falsify(reply []byte) []byte {
	return f.pattern.ReplaceAll(reply, []byte(f.Replacement))
}

func (f *fault) error() *Error {
	e := &Error{Code: f.Code, Status: f.Status, Message: f.Message}
	if e.Status == 0 {
		e.Status = http.StatusInternalServerError
	}
	if e.Message == "" {
		e.Message = "An injected fault."
	}
	return e
}

// Finish counts and logs a call. Code is "" for success, else the EC2 code, or
// "LostRequest" or "LostReply".
func (c *Cloud) Finish(call Call, code string) {
	c.read(func() {
		g := &c.gate
		s := g.stats[call.Action]
		if s == nil {
			s = &CallStats{Errors: map[string]int{}}
			g.stats[call.Action] = s
		}
		s.Count++
		switch code {
		case "":
		case "LostRequest":
			s.LostRequests++
		case "LostReply":
			s.LostReplies++
		default:
			s.Errors[code]++
		}
		g.log.add(CallRecord{Time: c.clock.Now(), Action: call.Action, Principal: call.Principal.ARN, Params: call.Params, Code: code})
	})
}

// Calls returns the counts of calls by action since the start or the last ResetCalls.
func (c *Cloud) Calls() map[string]CallStats {
	out := map[string]CallStats{}
	c.read(func() {
		for a, s := range c.gate.stats {
			n := *s
			n.Errors = maps.Clone(s.Errors)
			out[a] = n
		}
	})
	return out
}

// ResetCalls starts counting anew and empties the log.
func (c *Cloud) ResetCalls() {
	c.read(func() { c.gate.stats, c.gate.log = map[string]*CallStats{}, callLog{seq: c.gate.log.seq} })
}

// Deny takes an action (name or pattern) away from everybody: calls of it fail
// with UnauthorizedOperation.
func (c *Cloud) Deny(action string) { c.read(func() { c.gate.denied[action] = true }) }

// Allow takes a Deny of the same name or pattern back.
func (c *Cloud) Allow(action string) { c.read(func() { delete(c.gate.denied, action) }) }

// Inject adds a fault and returns the way to take it back. The error names
// the field of a fault that makes no sense.
func (c *Cloud) Inject(f spec.Fault) (remove func(), err error) {
	if err := spec.CheckFault(f); err != nil {
		return nil, err
	}
	n := newFault(f)
	c.read(func() { c.gate.faults = append(c.gate.faults, n) })
	return func() {
		c.read(func() {
			c.gate.faults = slices.DeleteFunc(c.gate.faults, func(o *fault) bool { return o == n })
		})
	}, nil
}

// Faults lists the faults in force, the spec's included; a Count is what is
// left of it.
func (c *Cloud) Faults() (out []spec.Fault) {
	c.read(func() {
		for _, f := range c.gate.faults {
			n := f.Fault
			n.Count, n.Skip = f.left, f.skip
			out = append(out, n)
		}
	})
	return out
}

// FaultsMet is how many faults calls have met since the start, by kind.
func (c *Cloud) FaultsMet() (met map[string]int) {
	c.read(func() { met = maps.Clone(c.gate.met) })
	return met
}

// ClearFaults takes all faults back.
func (c *Cloud) ClearFaults() { c.read(func() { c.gate.faults = nil }) }

// SetLatency adds a delay to every call of an action (name or pattern); zero ends it.
func (c *Cloud) SetLatency(action string, d time.Duration) {
	c.read(func() {
		if c.gate.latencies == nil {
			c.gate.latencies = map[string]spec.Duration{}
		}
		c.gate.latencies[action] = spec.Duration(d)
	})
}

// Outage makes the EC2 endpoint unreachable (connections are closed), or
// reachable again.
func (c *Cloud) Outage(on bool) { c.read(func() { c.gate.outage = on }) }

// Down tells whether the EC2 endpoint is unreachable.
func (c *Cloud) Down() (down bool) {
	c.read(func() { down = c.gate.outage })
	return down
}
