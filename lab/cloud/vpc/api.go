package vpc

import (
	"maps"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/berthnet/berth/lab/cloud/spec"
)

// Call is one API call as received.
type Call struct {
	Action    string
	Principal Principal
	Params    map[string][]string
	// Unbounded is set for a describe call without filters and pagination, which uses a smaller bucket.
	Unbounded bool
	// Targets are the named resources, for actions whose permission may depend on them.
	Targets []Target
}

// Verdict tells the handler how to treat a call before its own logic runs.
type Verdict struct {
	Latency     time.Duration             // wait before anything else
	LoseRequest bool                      // close the connection without any effect
	Err         *Error                    // reply with this error
	LoseReply   bool                      // process the call, then close the connection without a reply
	Falsify     func(reply []byte) []byte // process the call, then change the reply; nil: no change
}

// CallStats counts the calls of one action. Calls made during an outage never arrive and are not counted.
type CallStats struct {
	Count        int            // all that arrived, including those with a lost reply or request
	Errors       map[string]int // by EC2 error code
	LostRequests int
	LostReplies  int
}

// API throttles calls, injects faults and checks permissions before the calls' own logic, and keeps
// statistics and a log. The world's lock guards it.
type API struct {
	world      *world
	authorizer *authorizer
	throttle   throttle
	faults     faults
	denials    map[string]bool // denied action patterns
	latencies  map[string]spec.Duration
	outage     bool
	stats      map[string]*CallStats
	log        callLog
}

func newAPI(s spec.Spec, seed uint64, z *authorizer) *API {
	latencies := maps.Clone(s.Latencies)
	if latencies == nil {
		latencies = map[string]spec.Duration{}
	}
	return &API{
		world: z.store.world, authorizer: z, throttle: newThrottle(s), faults: newFaults(s.Faults, seed),
		denials: map[string]bool{}, latencies: latencies, stats: map[string]*CallStats{},
	}
}

// Covers reports whether an action pattern such as "Describe*" or
// "ec2:AttachNetworkInterface" covers an action. IAM ignores case.
func Covers(pattern, action string) bool {
	pattern = strings.TrimPrefix(strings.ToLower(pattern), "ec2:")
	ok, err := path.Match(pattern, strings.ToLower(action))
	return err == nil && ok
}

// Admit decides whether a call is throttled, failed by a fault, denied, or may proceed. The handler must
// follow the verdict and then call Finish.
func (api *API) Admit(call Call) (v Verdict) {
	api.world.read(func() {
		for p, d := range api.latencies {
			if Covers(p, call.Action) {
				v.Latency += d.D()
			}
		}
		if !api.throttle.take(call, api.world.clock.Now()) {
			v.Err = throttled()
			return
		}
		if api.faults.meet(call.Action, &v); v.Err != nil || v.LoseRequest {
			return
		}
		v.Err = api.permit(call)
	})
	return v
}

func throttled() *Error {
	return &Error{"RequestLimitExceeded", http.StatusServiceUnavailable, "Request limit exceeded."}
}

// Finish counts and logs a call. code is "" for success, or else the EC2 code, "LostRequest" or
// "LostReply".
func (api *API) Finish(call Call, code string) {
	api.world.read(func() {
		s := api.stats[call.Action]
		if s == nil {
			s = &CallStats{Errors: map[string]int{}}
			api.stats[call.Action] = s
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
		api.log.add(CallRecord{Time: api.world.clock.Now(), Action: call.Action, Principal: call.Principal.ARN, Params: call.Params, Code: code})
	})
}

// Stats returns the counts of calls by action since the start or the last ResetCalls.
func (api *API) Stats() map[string]CallStats {
	out := map[string]CallStats{}
	api.world.read(func() {
		for a, s := range api.stats {
			n := *s
			n.Errors = maps.Clone(s.Errors)
			out[a] = n
		}
	})
	return out
}

// ResetCalls resets the counts and empties the log.
func (api *API) ResetCalls() {
	api.world.read(func() { api.stats, api.log = map[string]*CallStats{}, callLog{seq: api.log.seq} })
}

// Deny denies an action (name or pattern) to all callers: calls fail with UnauthorizedOperation.
func (api *API) Deny(action string) { api.world.read(func() { api.denials[action] = true }) }

// Allow reverts a Deny of the same name or pattern.
func (api *API) Allow(action string) { api.world.read(func() { delete(api.denials, action) }) }

// SetLatency adds a delay to every call of an action (name or pattern); zero removes it.
func (api *API) SetLatency(action string, d time.Duration) {
	api.world.read(func() {
		api.latencies[action] = spec.Duration(d)
	})
}

// Outage makes the EC2 endpoint unreachable (it closes connections), or reachable again.
func (api *API) Outage(on bool) { api.world.read(func() { api.outage = on }) }

// Down reports whether the EC2 endpoint is unreachable.
func (api *API) Down() (down bool) {
	api.world.read(func() { down = api.outage })
	return down
}
