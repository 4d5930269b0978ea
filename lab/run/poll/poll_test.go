package poll

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Until returns the last error of the condition, not that of an attempt that the context interrupted.
func TestUntilReturnsLastError(t *testing.T) {
	for name, tt := range map[string]struct {
		first time.Duration // duration of the first attempt
		want  string
	}{
		"interrupted attempt":   {0, "not yet"},
		"uninterrupted attempt": {time.Hour, context.DeadlineExceeded.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				takes := tt.first
				err := Until(ctx, func() error {
					select {
					case <-ctx.Done():
						return ctx.Err()
					case <-time.After(takes):
						takes = time.Hour
						return errors.New("not yet")
					}
				})
				if err == nil || err.Error() != tt.want {
					t.Errorf("Until() = %v, want %s", err, tt.want)
				}
			})
		})
	}
}

func TestUntil(t *testing.T) {
	for _, tt := range []struct {
		name  string
		takes time.Duration // until the condition is met
		late  time.Duration // maximum delay
		looks int           // maximum number of attempts
	}{
		{"immediately", 0, 0, 1},
		{"soon", 50 * time.Millisecond, Often, 4},
		{"in a second", time.Second, time.Second / share, 20},
		{"in a minute", time.Minute, Seldom, 150},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, looks := time.Now(), 0
				err := Until(t.Context(), func() error {
					looks++
					if time.Since(began) < tt.takes {
						return errors.New("not yet")
					}
					return nil
				})
				if took := time.Since(began); err != nil || took > tt.takes+tt.late || looks > tt.looks {
					t.Errorf("Until() = %v after %v and %d attempts; want nil after at most %v and %d attempts", err, took, looks, tt.takes+tt.late, tt.looks)
				}
			})
		})
	}
}

func TestUntilContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		last := errors.New("still not")
		if err := Until(ctx, func() error { return last }); !errors.Is(err, last) {
			t.Errorf("Until() = %v, want the last error", err)
		}
		if err := Pause(ctx, time.Now(), Often); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Pause() = %v, want the context's error", err)
		}
	})
}

func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		passing, lasting := errors.New("passing"), errors.New("lasting")
		again := func(err error) bool { return errors.Is(err, passing) }
		for _, last := range []error{nil, lasting} {
			tries := 0
			err := Retry(ctx, func() error {
				if tries++; tries < 3 {
					return passing
				}
				return last
			}, again)
			if !errors.Is(err, last) || tries != 3 {
				t.Errorf("Retry() = %v after %d attempts, want %v after 3", err, tries, last)
			}
		}
		err := Retry(ctx, func() error { return passing }, again)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, passing) {
			t.Errorf("Retry() = %v, want the context's error and the last one", err)
		}
	})
}
