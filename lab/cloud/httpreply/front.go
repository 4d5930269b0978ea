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

// Fault makes calls fail, or be slow, or be answered with something false.
type Fault struct {
	Method string // empty: any
	// Path is a pattern of path.Match, such as /v2.0/ports; empty: any.
	Path  string
	Skip  int // matching calls that pass before the first one fails
	Times int // matching calls that fail then; 0: all
	// Delay passes before anything else, by the service's clock, or until the client gives up.
	Delay time.Duration
	// After lets the call take effect before it fails.
	After bool
	// HangUp closes the connection in place of an answer.
	HangUp bool
	// Status is that of the answer; 0: the call's own. Type and Message are those of the service's
	// errors. If Plain, Message is the whole body, as proxies answer.
	Status        int
	Type, Message string
	Plain         bool
	RetryAfter    int // seconds of the header Retry-After; 0: none
	// Falsify changes the body of the answer; nil: not.
	Falsify func(body []byte) []byte
	Header  map[string]string // added to the answer

	met int
}

// Call is one call that was made.
type Call struct {
	Method, Path string
	Query        string // encoded
	Body         string
	Status       int // 0: no answer
	At           time.Time
}

// Reply is an answer before it is sent.
type Reply struct {
	Status int
	Header map[string]string
	Body   []byte
}

// JSON is a reply with a body in JSON.
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
	MaxBody int64 // the largest request that is read, in bytes
	MaxURL  int   // the longest URL, in bytes
	// Handle replies to a call.
	Handle func(r *http.Request, body []byte) Reply
	// TooLong is the reply to a call with a longer URL, TooLarge to one with a larger body, and Refuse
	// to one that a fault fails with a status.
	TooLong  Reply
	TooLarge func(r *http.Request) Reply
	Refuse   func(r *http.Request, f Fault) Reply
}

// Front stands between a service and its clients. Make it with New. Its methods may be called from
// many goroutines.
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

// ResetCalls empties the log of calls.
func (f *Front) ResetCalls() { f.mu.Lock(); defer f.mu.Unlock(); f.calls = nil }

// Count counts the calls of a method so far, of paths that match as Fault.Path does.
func (f *Front) Count(method, pattern string) (n int) {
	for _, c := range f.Calls() {
		if ok, _ := path.Match(pattern, c.Path); ok && c.Method == method {
			n++
		}
	}
	return n
}

// fault is the one that a call meets; nil for none.
func (f *Front) fault(r *http.Request) *Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, each := range f.faults {
		ok, _ := path.Match(cmp.Or(each.Path, r.URL.Path), r.URL.Path)
		if !ok || each.Method != "" && each.Method != r.Method || each.Times > 0 && each.met >= each.Skip+each.Times {
			continue
		}
		if each.met++; each.met > each.Skip {
			return each
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

// failed is the reply to a call that a fault fails, in place of its own.
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
