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

// Ends of an attempt.
var (
	absent  error = &fs.PathError{Op: "dial", Path: "berthd.sock", Err: fs.ErrNotExist}
	refuses error = syscall.ECONNREFUSED
	broke   error = &unary.Error{Code: unary.Unavailable, Message: "the connection broke"}
	refused error = &unary.Error{Code: unary.ResourceExhausted, Message: "no address is free yet"}
	late    error = &unary.Error{Code: unary.DeadlineExceeded, Message: "no answer in time"}
)

func TestRepeated(t *testing.T) {
	for _, tc := range []struct {
		name       string
		restarting bool
		outcomes   []error // of the attempts; the last one's goes on
		attempts   int     // -1: as many as the time allows
		want       error
	}{
		{"an answer", false, []error{nil}, 1, nil},
		{"a refusal", true, []error{refused}, 1, refused},
		{"no answer in time", true, []error{late}, 1, late},
		{"not permitted", true, []error{fs.ErrPermission}, 1, fs.ErrPermission},
		{"nobody ever", false, []error{absent}, 1, absent},
		{"a restart", true, []error{absent, refuses, refuses, nil}, 4, nil},
		{"it ends under the call", false, []error{broke, absent, refuses, nil}, 4, nil},
		{"it ends under the call twice", false, []error{broke, refuses, broke, refuses, nil}, 5, nil},
		{"it ends under the call, and the next one refuses", false, []error{broke, refused}, 2, refused},
		{"it never comes back", false, []error{broke, refuses}, -1, refuses},
		{"it ends under every call", false, []error{broke, refuses, broke, broke, broke, broke, nil}, 6, broke},
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
					t.Errorf("%q, %v; want %v", reply, err, tc.want)
				}
				took := time.Since(began)
				switch {
				case tc.attempts < 0 && (took != limit || attempts < int(limit/mostWait) || attempts > int(limit/firstWait)/4):
					t.Errorf("%d attempts in %v, want some a second until the time is up", attempts, took)
				case tc.attempts >= 0 && (attempts != tc.attempts || took > time.Second):
					t.Errorf("%d attempts in %v, want %d in less than a second", attempts, took, tc.attempts)
				}
			})
		})
	}
}
