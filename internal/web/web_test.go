package web

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestListenNamesTheFlag(t *testing.T) {
	l, err := Listen("metrics-address", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := Listen("metrics-address", l.Addr().String()); err == nil || !strings.Contains(err.Error(), "--metrics-address "+l.Addr().String()) {
		t.Errorf("err = %v", err)
	}
	if l, err := Listen("metrics-address", ""); l != nil || err != nil {
		t.Errorf("empty address: %v, %v", l, err)
	}
}

func TestStartupProbeWaitsUntilReady(t *testing.T) {
	for _, tt := range []struct {
		name        string
		ready, hung time.Duration // after the start; how long a check takes
		want        string
		after       time.Duration
	}{
		{"ready at once", 0, 0, "ok\n", 0},
		{"ready later", 2 * time.Second, 0, "ok\n", 2 * time.Second},
		{"not ready", time.Hour, 0, "started, and not ready yet: no address\n", StartupPatience},
		{"a check that takes long", time.Hour, 5 * time.Second, "started, and not ready yet: no address\n", 15 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				mux := http.NewServeMux()
				HandleStartup(mux, "/startupz", func() error {
					time.Sleep(tt.hung) //nolint:forbidigo // virtual time
					if time.Since(began) < tt.ready {
						return errors.New("no address")
					}
					return nil
				})
				w := httptest.NewRecorder()
				mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/startupz", nil))
				if w.Code != http.StatusOK || w.Body.String() != tt.want || time.Since(began) != tt.after {
					t.Errorf("%d after %v: %s", w.Code, time.Since(began), w.Body)
				}
			})
		})
	}
}

// A startup probe whose client went away leaves nothing behind.
func TestStartupProbeEndsWithItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux := http.NewServeMux()
		HandleStartup(mux, "/startupz", func() error { return errors.New("never") })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/startupz", nil))
		if took := time.Since(began); took != time.Second {
			t.Errorf("ended after %v", took)
		}
	})
}

// Other clients of the address cannot occupy its connections with many requests.
func TestStartupProbesThatWaitAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux := http.NewServeMux()
		HandleStartup(mux, "/startupz", func() error { return errors.New("no address") })
		began := time.Now()
		took := make(chan time.Duration)
		const asked = 20
		for range asked {
			go func() {
				w := httptest.NewRecorder()
				mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/startupz", nil))
				if w.Code != http.StatusOK || w.Body.String() != "started, and not ready yet: no address\n" {
					t.Errorf("%d: %s", w.Code, w.Body)
				}
				took <- time.Since(began)
			}()
		}
		at := map[time.Duration]int{}
		for range asked {
			at[<-took]++
		}
		if at[0] != asked-startupWaiting || at[StartupPatience] != startupWaiting {
			t.Errorf("answers after %v, want all but %d at once", at, startupWaiting)
		}
	})
}
