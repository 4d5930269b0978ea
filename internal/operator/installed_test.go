package operator

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/test/harness"
)

// A change of the mounted ConfigMap berthd-allowed counts once it has lasted longer than an upgrade takes to replace the
// operator, and no longer than it lasts.
func TestInstalled(t *testing.T) {
	dir := t.TempDir()
	write := func(key, value string) { harness.OK(t, os.WriteFile(filepath.Join(dir, key), []byte(value), 0o600)) }
	write("addresses", "256")
	synctest.Test(t, func(t *testing.T) {
		i := &installed{
			drift: config.Drift{Installed: &config.Installed{Allowed: map[string]string{"addresses": "256"}}},
			dir:   dir, clock: clock.Real{}, log: slog.New(slog.DiscardHandler),
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = i.run(ctx) }()
		says := func(want string) {
			t.Helper()
			synctest.Wait()
			if known, message := i.state(); !known || (want == "") != (message == "") || !strings.Contains(message, want) {
				t.Errorf("state() = %v, %q, want true and %q", known, message, want)
			}
		}
		says("")
		write("addresses", "1024")
		<-time.After(allowedGrace)
		says("")
		<-time.After(2 * allowedInterval)
		says("addresses of the ConfigMap berthd-allowed is 1024, and the chart installed 256")
		harness.OK(t, os.Remove(filepath.Join(dir, "addresses")))
		<-time.After(2 * allowedInterval)
		says("the ConfigMap berthd-allowed is missing")
		write("addresses", "256")
		<-time.After(2 * allowedInterval)
		says("")
		i.drift.Changes = []string{"shrink-delay is 1h, and the chart installed 1m"}
		says("shrink-delay is 1h, and the chart installed 1m. To keep a change")
	})
	if known, message := (&installed{}).state(); known || message != "" {
		t.Errorf("state() of an operator that no chart installed = %v, %q, want nothing", known, message)
	}
}
