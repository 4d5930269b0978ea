package heartbeat_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/node/heartbeat"
)

func TestRecent(t *testing.T) {
	const beat = 1000 * time.Second
	for _, tc := range []struct {
		name string
		now  time.Duration
		want bool
	}{
		{"at once", beat, true},
		{"just within the grace", beat + heartbeat.Grace - 1, true},
		{"at the grace", beat + heartbeat.Grace, false},
		{"long ago", beat + time.Hour, false},
		{"of another boot", beat - 1, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "berthd.sock")
			if err := heartbeat.Beat(socket, beat); err != nil {
				t.Fatal(err)
			}
			if got := heartbeat.Recent(socket, tc.now); got != tc.want {
				t.Errorf("Recent at %v = %v, want %v", tc.now, got, tc.want)
			}
		})
	}
}

func TestRenewAndStop(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "berthd.sock")
	if heartbeat.Recent(socket, 0) {
		t.Error("a heartbeat that never was is recent")
	}
	for _, at := range []time.Duration{time.Second, time.Hour} {
		if err := heartbeat.Beat(socket, at); err != nil {
			t.Fatal(err)
		}
	}
	if !heartbeat.Recent(socket, time.Hour) {
		t.Error("a renewed heartbeat is not recent")
	}
	for range 2 {
		if err := heartbeat.Stop(socket); err != nil {
			t.Fatal(err)
		}
	}
	if heartbeat.Recent(socket, time.Hour) {
		t.Error("a stopped heartbeat is recent")
	}
	if left, _ := os.ReadDir(filepath.Dir(socket)); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestDamaged(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "berthd.sock")
	for _, content := range []string{"", "\n", "soon", "99999999999999999999", "-1\n"} {
		if err := os.WriteFile(heartbeat.Path(socket), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if heartbeat.Recent(socket, heartbeat.Grace) {
			t.Errorf("heartbeat %q is recent", content)
		}
	}
}
