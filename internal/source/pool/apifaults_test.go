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
	"github.com/berthnet/berth/test/harness"
)

// faults are on the way to the API server, where requests are held and replies lost.
type faults struct {
	hold func(method, path, body string) bool
	lose func(method string) bool

	held   chan struct{} // gets one for a request that is held
	passed chan struct{} // closed: none is any more

	lost sync.Map // requests whose reply was lost once
}

// faults puts itself between the daemon and the API server.
func (m *machine) faults() *faults {
	w := &faults{held: make(chan struct{}, 100), passed: make(chan struct{})}
	m.Config.Wrap(harness.Through(w.pass))
	return w
}

// pass is one request on its way.
func (w *faults) pass(r *http.Request, next http.RoundTripper) (*http.Response, error) {
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
	resp, err := next.RoundTrip(r)
	if err != nil || w.lose == nil || !w.lose(r.Method) {
		return resp, err
	}
	if _, before := w.lost.LoadOrStore(r.Method+r.URL.Path+string(body), true); before {
		return resp, nil
	}
	resp.Body.Close()
	return nil, errors.New("the reply was lost")
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
