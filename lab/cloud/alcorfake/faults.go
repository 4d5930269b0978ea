package alcorfake

import (
	"cmp"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"time"
)

// Fault has calls fail, or take long.
type Fault struct {
	Method string // empty: any
	Path   string // a pattern of package path; empty: any
	// Skip calls that match are not met, and Times of those after them are; 0: all.
	Skip, Times int
	// Delay is before anything else, by the cloud's clock, or until the caller gives up.
	Delay time.Duration
	// After lets the call take effect before it fails.
	After bool
	// HangUp closes the connection in place of an answer.
	HangUp bool
	// Status is that of the answer; 0: the call's own. Message is told as Spring does, or,
	// if Plain, is the whole body, as proxies answer.
	Status     int
	Message    string
	Plain      bool
	RetryAfter int // seconds; 0: not said
	// Falsify changes what is answered; nil: not.
	Falsify func(body []byte) []byte
	Header  map[string]string // added to the answer

	met int
}

// Call is one call that was made.
type Call struct {
	Method, Path string
	Query        string // encoded
	Body         string
	Status       int // 0: none was answered
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
func (c *Cloud) answer(f *Fault, r *http.Request, own reply) reply {
	out := own
	switch {
	case f.Status != 0 && f.Plain:
		out = reply{f.Status, map[string]string{"Content-Type": "text/html"}, []byte(f.Message)}
	case f.Status != 0:
		out = c.refused(r, refuse(f.Status, f.Message))
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
