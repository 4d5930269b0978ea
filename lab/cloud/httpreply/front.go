package httpreply

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
)

// Fault makes calls fail, delays them, or falsifies their replies.
type Fault struct {
	Method string // empty: any
	// Path is a pattern of path.Match, such as /v2.0/ports; empty: any.
	Path  string
	Skip  int // matching calls that pass before the first failure
	Times int // matching calls that then fail; 0: all
	// Delay passes on the service's clock before anything else, unless the client gives up.
	Delay time.Duration
	// After lets the call take effect before it fails.
	After bool
	// HangUp closes the connection instead of replying.
	HangUp bool
	// Status is the status of the reply; 0: that of the call itself. Type and Message fill the service's
	// error. With Plain, Message is the whole body, as in replies of proxies.
	Status        int
	Type, Message string
	Plain         bool
	RetryAfter    int // seconds in the header Retry-After; 0: none
	// Falsify changes the body of the reply, unless nil.
	Falsify func(body []byte) []byte
	Header  map[string]string // added to the reply

	met int
}

// Call is one received call.
type Call struct {
	Method, Path string
	Query        string // encoded
	Body         string
	Status       int // 0: no reply
	At           time.Time
}

// Reply is a reply that has not been sent.
type Reply struct {
	Status int
	Header map[string]string
	Body   []byte
}

// JSON returns a reply with a JSON body.
func JSON(status int, body any) Reply {
	b, err := json.Marshal(body)
	if err != nil {
		return Reply{Status: 500, Body: []byte("the lab cannot encode its reply: " + err.Error())}
	}
	return Reply{status, map[string]string{"Content-Type": "application/json"}, b}
}

// Service configures the Front of a service.
type Service struct {
	Clock   clock.Clock
	MaxBody int64 // maximum size of a request in bytes
	MaxURL  int   // maximum length of a URL in bytes
	// Handle replies to a call.
	Handle func(r *http.Request, body []byte) Reply
	// TooLong is the reply to a call with a longer URL, TooLarge the reply to a call with a larger body,
	// and Refuse the reply to a call that a fault fails with a status.
	TooLong  Reply
	TooLarge func(r *http.Request) Reply
	Refuse   func(r *http.Request, f Fault) Reply
}

// Front stands between a service and its clients, and injects faults and logs calls. It is safe for
// concurrent use.
type Front struct {
	service Service

	mu     sync.Mutex // guards all below
	faults []*Fault
	calls  []Call
}

// New returns the front of a service.
func New(s Service) *Front { return &Front{service: s} }

// Inject adds a fault.
func (f *Front) Inject(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = append(f.faults, &fault)
}

// ClearFaults removes all faults.
func (f *Front) ClearFaults() { f.mu.Lock(); defer f.mu.Unlock(); f.faults = nil }

// Calls lists the calls so far.
func (f *Front) Calls() []Call { f.mu.Lock(); defer f.mu.Unlock(); return slices.Clone(f.calls) }

// ResetCalls empties the call log.
func (f *Front) ResetCalls() { f.mu.Lock(); defer f.mu.Unlock(); f.calls = nil }

// Count returns the number of calls so far with a method and with paths that match as Fault.Path does.
func (f *Front) Count(method, pattern string) (n int) {
	for _, c := range f.Calls() {
		if ok, _ := path.Match(pattern, c.Path); ok && c.Method == method {
			n++
		}
	}
	return n
}

// fault returns a copy of the fault that applies to a call, or nil.
func (f *Front) fault(r *http.Request) *Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, each := range f.faults {
		ok, _ := path.Match(cmp.Or(each.Path, r.URL.Path), r.URL.Path)
		if !ok || each.Method != "" && each.Method != r.Method || each.Times > 0 && each.met >= each.Skip+each.Times {
			continue
		}
		if each.met++; each.met > each.Skip {
			now := *each
			return &now
		}
	}
	return nil
}

// ServeHTTP implements http.Handler.
func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, f.service.MaxBody))
	fault := f.fault(r)
	if fault != nil && fault.Delay > 0 {
		select {
		case <-f.service.Clock.After(fault.Delay):
		case <-r.Context().Done():
		}
	}
	var out Reply
	switch tooLarge := (*http.MaxBytesError)(nil); {
	case fault != nil && !fault.After && (fault.HangUp || fault.Status != 0):
	case errors.As(err, &tooLarge):
		out = f.service.TooLarge(r)
	case err != nil:
		out = Reply{Status: 400, Body: []byte("The request cannot be read.")}
	case len(r.RequestURI) > f.service.MaxURL:
		out = f.service.TooLong
	default:
		out = f.service.Handle(r, body)
	}
	if fault != nil {
		out = f.failed(r, *fault, out)
	}
	hangUp := fault != nil && fault.HangUp
	f.log(r, body, out.Status, hangUp)
	if hangUp {
		HangUp(w)
		return
	}
	for name, value := range out.Header {
		w.Header().Set(name, value)
	}
	w.WriteHeader(out.Status)
	_, _ = w.Write(out.Body)
}

// failed returns the reply to a call that a fault fails.
func (f *Front) failed(r *http.Request, fault Fault, own Reply) Reply {
	out := own
	if fault.Status != 0 {
		out = f.service.Refuse(r, fault)
	}
	if out.Header = maps.Clone(out.Header); out.Header == nil {
		out.Header = map[string]string{}
	}
	maps.Copy(out.Header, fault.Header)
	if fault.RetryAfter > 0 {
		out.Header["Retry-After"] = strconv.Itoa(fault.RetryAfter)
	}
	if fault.Falsify != nil {
		out.Body = fault.Falsify(out.Body)
	}
	return out
}

func (f *Front) log(r *http.Request, body []byte, status int, hangUp bool) {
	if hangUp {
		status = 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, Call{r.Method, r.URL.Path, r.URL.RawQuery, string(body), status, f.service.Clock.Now()})
}
