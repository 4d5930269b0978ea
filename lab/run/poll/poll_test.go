package poll

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Who waits in vain learns what was seen last, and not that the time was over while something was looked at.
func TestUntilInVain(t *testing.T) {
	for name, tt := range map[string]struct {
		first time.Duration // until the first look returns
		want  string
	}{
		"a look that ctx cuts short":      {0, "not yet"},
		"none that it does not cut short": {time.Hour, context.DeadlineExceeded.Error()},
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
					t.Errorf("got %v, want %s", err, tt.want)
				}
			})
		})
	}
}

func TestUntil(t *testing.T) {
	for _, tt := range []struct {
		name  string
		takes time.Duration // until it is so
		late  time.Duration // at most
		looks int           // at most
	}{
		{"at once", 0, 0, 1},
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
					t.Errorf("%v after %v and %d looks", err, took, looks)
				}
			})
		})
	}
}

func TestUntilTheContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		last := errors.New("still not")
		if err := Until(ctx, func() error { return last }); !errors.Is(err, last) {
			t.Errorf("got %v, want what was said last", err)
		}
		if err := Pause(ctx, time.Now(), Often); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the context's error", err)
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
				t.Errorf("%v after %d tries, want %v after 3", err, tries, last)
			}
		}
		err := Retry(ctx, func() error { return passing }, again)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, passing) {
			t.Errorf("got %v, want the context's error and the last one", err)
		}
	})
}
