package neutronfake

import (
	"cmp"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"time"
)

// Fault makes calls fail, or be slow, or be answered with what is not so.
type Fault struct {
	Method string // empty: any
	// Path is a pattern of path.Match, such as /v2.0/ports or /v3/auth/tokens; empty:
	// any.
	Path  string
	Skip  int // calls that it lets through first
	Times int // calls that it meets then; 0: all
	// Delay lets time pass before anything else, by the cloud's clock, or until the
	// caller gives up.
	Delay time.Duration
	// After lets the call take effect before it fails.
	After bool
	// HangUp closes the connection in place of an answer.
	HangUp bool
	// Status is that of the answer; 0: the call's own. Type and Message are those of
	// Neutron's error; without Type, Message is the whole body, as proxies answer.
	Status        int
	Type, Message string
	RetryAfter    int // seconds; 0: not said
	// Falsify changes what is answered; nil: not.
	Falsify func(body []byte) []byte
	// Header is added to the answer.
	Header map[string]string

	met int
}

// Call is one call that was made.
type Call struct {
	Method, Path string
	Query        string // encoded
	Ports        int    // that a POST asked for
	Status       int    // 0: none was answered
	At           time.Time
}

// Inject adds a fault.
func (c *Cloud) Inject(f Fault) { c.set(func() { c.faults = append(c.faults, &f) }) }

// ClearFaults ends all faults.
func (c *Cloud) ClearFaults() { c.set(func() { c.faults = nil }) }

// Calls lists the calls so far.
func (c *Cloud) Calls() (out []Call) {
	c.set(func() { out = slices.Clone(c.calls) })
	return out
}

// ResetCalls forgets the calls so far.
func (c *Cloud) ResetCalls() { c.set(func() { c.calls = nil }) }

// Count counts the calls of a method so far, of paths that match as Fault.Path does.
func (c *Cloud) Count(method, pattern string) (n int) {
	for _, call := range c.Calls() {
		if ok, _ := path.Match(pattern, call.Path); ok && call.Method == method {
			n++
		}
	}
	return n
}

// fault is the one that a call meets; nil for none. c.mu is held.
func (c *Cloud) fault(r *http.Request) *Fault {
	for _, f := range c.faults {
		ok, _ := path.Match(cmp.Or(f.Path, r.URL.Path), r.URL.Path)
		if !ok || f.Method != "" && f.Method != r.Method || f.Times > 0 && f.met >= f.Skip+f.Times {
			continue
		}
		if f.met++; f.met > f.Skip {
			return f
		}
	}
	return nil
}

// answer is what is answered in place of what would be.
func (f *Fault) answer(own reply) reply {
	out := own
	if f.Status != 0 {
		out = textReply(f.Status, f.Message)
		if f.Type != "" {
			out = refuse(f.Status, f.Type, "%s", f.Message).reply()
		}
	}
	out.header = maps.Clone(out.header)
	if out.header == nil {
		out.header = map[string]string{}
	}
	maps.Copy(out.header, f.Header)
	if f.RetryAfter > 0 {
		out.header["Retry-After"] = strconv.Itoa(f.RetryAfter)
	}
	if f.Falsify != nil {
		out.body = f.Falsify(out.body)
	}
	return out
}
