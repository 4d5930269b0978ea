package cni

import (
	"context"
	"errors"
	"io/fs"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/rpc/unary"
)

// Errors with which an attempt ends.
var (
	absent  error = &fs.PathError{Op: "dial", Path: "berthd.sock", Err: fs.ErrNotExist}
	refuses error = syscall.ECONNREFUSED
	broke   error = &unary.Error{Code: unary.Unavailable, Message: "the connection broke"}
	refused error = &unary.Error{Code: unary.ResourceExhausted, Message: "no address is free yet"}
	late    error = &unary.Error{Code: unary.DeadlineExceeded, Message: "no answer in time"}
)

func TestRepeatedCalls(t *testing.T) {
	for _, tc := range []struct {
		name       string
		restarting bool
		outcomes   []error // outcomes of the attempts; the last one repeats
		attempts   int     // -1: until the timeout
		want       error
	}{
		{"reply", false, []error{nil}, 1, nil},
		{"error from the daemon", true, []error{refused}, 1, refused},
		{"no answer in time", true, []error{late}, 1, late},
		{"not permitted", true, []error{fs.ErrPermission}, 1, fs.ErrPermission},
		{"never a daemon", false, []error{absent}, 1, absent},
		{"restart", true, []error{absent, refuses, refuses, nil}, 4, nil},
		{"daemon ends during the call", false, []error{broke, absent, refuses, nil}, 4, nil},
		{"daemon ends twice during the call", false, []error{broke, refuses, broke, refuses, nil}, 5, nil},
		{"daemon ends during the call, and the next one returns an error", false, []error{broke, refused}, 2, refused},
		{"daemon ends and does not restart", false, []error{broke, refuses}, -1, refuses},
		{"daemon ends during every attempt", false, []error{broke, refuses, broke, broke, broke, broke, nil}, 6, broke},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const limit = time.Minute
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				began, attempts := time.Now(), 0
				reply, err := repeated(ctx, clock.Real{}, func() bool { return tc.restarting }, func(context.Context) ([]byte, error) {
					attempts++
					if err := tc.outcomes[min(attempts, len(tc.outcomes))-1]; err != nil {
						return nil, err
					}
					return []byte("attached"), nil
				})
				if !errors.Is(err, tc.want) || (err == nil) != (string(reply) == "attached") {
					t.Errorf("repeated() = %q, %v, want error %v", reply, err, tc.want)
				}
				took := time.Since(began)
				switch {
				case tc.attempts < 0 && (took != limit || attempts < int(limit/mostWait) || attempts > int(limit/firstWait)/4):
					t.Errorf("%d attempts in %v, want several per second until the timeout", attempts, took)
				case tc.attempts >= 0 && (attempts != tc.attempts || took > time.Second):
					t.Errorf("%d attempts in %v, want %d in less than a second", attempts, took, tc.attempts)
				}
			})
		})
	}
}
