package aws

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/pace"
)

// TestWrongClock has a machine whose clock is another than EC2's, which takes no
// signature that is more than five minutes off (AWS general reference, "Signature
// Version 4"). The first call's refusal tells EC2's time, and the call is made again by
// it; later ones are right at once.
func TestWrongClock(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{-24 * time.Hour, -6 * time.Minute, 6 * time.Minute, 24 * time.Hour} {
		t.Run(off.String(), func(t *testing.T) {
			t.Parallel()
			var refused int
			s := serve(t, map[string][]answer{pace.Assign.Action: {ok(pace.Assign.Action, oneAddress)}})
			strict := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				now := time.Now().Add(off)
				w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
				signed, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
				if err != nil || now.Sub(signed).Abs() > 5*time.Minute {
					refused++
					old := refusal(400, "RequestExpired", "Request has expired.")
					w.WriteHeader(old.status)
					_, _ = w.Write([]byte(old.body))
					return
				}
				s.handle(w, r)
			}))
			t.Cleanup(strict.Close)
			c := client(t, s, func(o *setup) { o.EC2Endpoint = strict.URL })
			for call := range 3 {
				if _, err := c.AssignAddresses(t.Context(), "eni-1", cloud.Amount{Addresses: 1}); err != nil {
					t.Errorf("call %d: %v", call+1, err)
				}
			}
			if refused != 1 {
				t.Errorf("%d requests were refused, want the first only", refused)
			}
		})
	}
}
