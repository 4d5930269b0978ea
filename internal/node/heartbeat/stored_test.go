package heartbeat

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The plugin of one release reads the heartbeat of another's daemon.
func TestStoredHeartbeat(t *testing.T) {
	samples, err := filepath.Glob("testdata/stored/*/heartbeat")
	if err != nil || len(samples) == 0 {
		t.Fatalf("there are no samples: %v", err)
	}
	socket := filepath.Join(t.TempDir(), "berthd.sock")
	for _, sample := range samples {
		data, err := os.ReadFile(sample)
		if err == nil {
			err = os.WriteFile(Path(socket), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		if at := 5 * time.Second; !Recent(socket, at+Grace-1) || Recent(socket, at+Grace) || Recent(socket, at-1) {
			t.Errorf("%s is not taken for one of five seconds after the boot", sample)
		}
		if err := Beat(socket, 5*time.Second); err != nil {
			t.Fatal(err)
		}
		if again, err := os.ReadFile(Path(socket)); err != nil || string(again) != string(data) {
			t.Errorf("%s: written as %q, %v", sample, again, err)
		}
	}
}
