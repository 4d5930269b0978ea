package heartbeat_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/clock"
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

// bubbleClock is the clock of a synctest bubble.
type bubbleClock struct {
	clock.Real
	start time.Time
}

func (c bubbleClock) Boot() time.Duration { return time.Hour + time.Since(c.start) }

func TestRun(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "berthd.sock")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		clk := bubbleClock{start: time.Now()}
		var good atomic.Bool
		done := make(chan struct{})
		go func() {
			defer close(done)
			heartbeat.Run(ctx, socket, clk, good.Load, func(err error) { t.Error(err) })
		}()
		// pass lets time pass and tells whether the heartbeat is recent then.
		pass := func(d time.Duration) bool {
			<-time.After(d)
			synctest.Wait()
			return heartbeat.Recent(socket, clk.Boot())
		}
		if pass(time.Minute) {
			t.Error("a daemon that was never good has a heartbeat")
		}
		good.Store(true)
		if !pass(heartbeat.Interval) || !pass(time.Hour) {
			t.Error("a good daemon has no heartbeat")
		}
		good.Store(false)
		if pass(heartbeat.Interval) {
			t.Error("a daemon that is not good any more has a heartbeat")
		}
		good.Store(true)
		pass(heartbeat.Interval)
		cancel()
		<-done
		if !pass(heartbeat.Grace - heartbeat.Interval - time.Second) {
			t.Error("a daemon that ended in order left no heartbeat")
		}
		if pass(heartbeat.Grace) {
			t.Error("its heartbeat goes on")
		}
	})
}

func TestRunSaysWhatGoesWrong(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	socket := filepath.Join(t.TempDir(), "gone", "berthd.sock")
	var failures []error
	heartbeat.Run(ctx, socket, clock.Real{}, func() bool { return true }, func(err error) {
		failures = append(failures, err)
		cancel()
	})
	if len(failures) == 0 || !errors.Is(failures[0], fs.ErrNotExist) {
		t.Errorf("failures %v, want that the directory is missing", failures)
	}
}

// A full disk does not end the heartbeat of a daemon that lives: after it, a restart
// would have the node's pods evicted.
func TestBeatOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16k"); err != nil {
		t.Fatalf("this test mounts a file system and needs root: %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	socket := filepath.Join(dir, "berthd.sock")
	if err := heartbeat.Beat(socket, time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 128<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	for now := time.Hour; now < 40*time.Hour; now += 13 * time.Hour {
		if err := heartbeat.Beat(socket, now); err != nil || !heartbeat.Recent(socket, now+heartbeat.Interval) {
			t.Errorf("after %v: %v", now, err)
		}
	}
	if err := errors.Join(heartbeat.Stop(socket)); err != nil {
		t.Fatal(err)
	}
}

// Nor does one that has space and can hold no more files.
func TestBeatWithoutInodes(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "nr_inodes=3"); err != nil { // the folder's own, and two files'
		t.Fatalf("this test mounts a file system and needs root: %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	socket := filepath.Join(dir, "berthd.sock")
	if err := heartbeat.Beat(socket, time.Hour); err != nil {
		t.Fatal(err)
	}
	var err error
	for n := 0; err == nil; n++ {
		err = os.WriteFile(filepath.Join(dir, fmt.Sprint(n)), nil, 0o600)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("there are inodes: %v", err)
	}
	if err := heartbeat.Beat(socket, 14*time.Hour); err != nil || !heartbeat.Recent(socket, 14*time.Hour) {
		t.Error(err)
	}
}
