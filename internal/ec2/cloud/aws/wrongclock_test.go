package aws

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/test/harness/check"
)

// A machine whose clock is hours off is refused once by EC2, as its signature is of
// another time (five minutes are allowed, IAM User Guide, "Signature Version 4"). The
// calls after that are signed with EC2's time, which its answers tell.
func TestWrongClock(t *testing.T) {
	for name, c := range map[string]struct {
		ahead time.Duration // EC2's clock is, of this machine's
		code  string
	}{
		"three hours behind": {3 * time.Hour, "SignatureDoesNotMatch"},
		"three hours ahead":  {-3 * time.Hour, "RequestExpired"},
		"of 1970":            {55 * 365 * 24 * time.Hour, "AuthFailure"},
	} {
		t.Run(name, func(t *testing.T) {
			refused := 0
			s := &server{}
			s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				form, _ := url.ParseQuery(string(body))
				now := time.Now().Add(c.ahead)
				a := ok(form.Get("Action"), oneAddress)
				if signed, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date")); err != nil || now.Sub(signed).Abs() > 5*time.Minute {
					refused++
					a = refusal(http.StatusForbidden, c.code, "Signature not yet current or expired")
				}
				w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
				w.Header().Set("Content-Type", "text/xml")
				w.WriteHeader(a.status)
				_, _ = io.WriteString(w, a.body)
			}))
			t.Cleanup(s.Close)
			api := client(t, s)
			assign := func() error {
				_, err := api.AssignAddresses(t.Context(), "eni-1", cloud.Amount{Addresses: 1})
				return err
			}
			if err := assign(); err != nil && cloud.ClassOf(err) != cloud.Permission {
				t.Errorf("the first call: %v", err)
			}
			for range 3 {
				if err := assign(); err != nil {
					t.Errorf("a call after the first: %v", err)
				}
			}
			check.Equal(t, refused, 1, "calls were refused")
		})
	}
}
