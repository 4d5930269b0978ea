package pool

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/source/confirm"
)

// faults are on the way to the API server, where requests are held and replies lost.
type faults struct {
	hold func(method, path, body string) bool
	lose func(method string) bool

	held   chan struct{} // gets one for a request that is held
	passed chan struct{} // closed: none is any more

	mu   sync.Mutex      // guards lost
	lost map[string]bool // requests whose reply was lost once
}

// faults puts itself between the daemon and the API server.
func (m *machine) faults() *faults {
	w := &faults{held: make(chan struct{}, 100), passed: make(chan struct{}), lost: map[string]bool{}}
	m.Config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return transport{w, next}
	})
	return w
}

// transport is a client's use of it.
type transport struct {
	*faults
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (w transport) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	if w.hold != nil && w.hold(r.Method, r.URL.Path, string(body)) {
		w.held <- struct{}{}
		select {
		case <-w.passed:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	resp, err := w.next.RoundTrip(r)
	if err == nil && w.lose != nil && w.lose(r.Method) && w.first(r.Method+r.URL.Path+string(body)) {
		resp.Body.Close()
		return nil, errors.New("the reply was lost")
	}
	return resp, err
}

func (w *faults) first(request string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := w.lost[request]
	w.lost[request] = true
	return !seen
}

func (w *faults) release() { close(w.passed) }

// unhurried is the machine's clock, by which the API server's first word always
// comes in time.
type unhurried struct{ clock.Real }

// After implements clock.Clock.
func (c unhurried) After(d time.Duration) <-chan time.Time {
	if d == confirm.Timeout {
		return nil
	}
	return c.Real.After(d)
}

// ticks is a clock that a test moves. It starts at the machine's time, as
// certificates and tokens are judged by that.
type ticks struct{ *clock.Fake }

func newTicks() ticks { return ticks{clock.NewFake(time.Now())} }

// flow lets time pass as it does for everybody, until stop is called: a request
// that failed is made again.
func (c ticks) flow() (stop func()) {
	const step = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(step): // the machine's time
				c.Advance(step)
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}
