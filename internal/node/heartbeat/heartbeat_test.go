package heartbeat

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
)

// must ends the test with an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRecent(t *testing.T) {
	const beat = 1000 * time.Second
	socket := filepath.Join(t.TempDir(), "berthd.sock")
	if Recent(socket, 0) {
		t.Error("a heartbeat that never was is recent")
	}
	must(t, Beat(socket, time.Second))
	must(t, Beat(socket, beat)) // renewed
	for now, want := range map[time.Duration]bool{
		beat: true, beat + Grace - 1: true, beat + Grace: false, beat + time.Hour: false,
		beat - 1: false, // of another boot
	} {
		if got := Recent(socket, now); got != want {
			t.Errorf("Recent at %v = %v, want %v", now, got, want)
		}
	}
	for range 2 {
		must(t, Stop(socket))
	}
	if left, _ := os.ReadDir(filepath.Dir(socket)); Recent(socket, beat) || len(left) != 0 {
		t.Errorf("a stopped heartbeat is recent, or left %v", left)
	}
	for _, content := range []string{"", "\n", "soon", "99999999999999999999", "-1\n"} {
		must(t, os.WriteFile(Path(socket), []byte(content), 0o600))
		if Recent(socket, Grace) {
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
			Run(ctx, socket, clk, good.Load, func(err error) { t.Error(err) })
		}()
		// pass lets time pass and reports whether the heartbeat is recent then.
		pass := func(d time.Duration) bool {
			<-time.After(d)
			synctest.Wait()
			return Recent(socket, clk.Boot())
		}
		if pass(time.Minute) {
			t.Error("a daemon that was never good has a heartbeat")
		}
		good.Store(true)
		if !pass(Interval) || !pass(time.Hour) {
			t.Error("a good daemon has no heartbeat")
		}
		good.Store(false)
		if pass(Interval) {
			t.Error("a daemon that is not good any more has a heartbeat")
		}
		good.Store(true)
		pass(Interval)
		cancel()
		<-done
		if !pass(Grace - Interval - time.Second) {
			t.Error("a daemon that ended in order left no heartbeat")
		}
		if pass(Grace) {
			t.Error("its heartbeat goes on")
		}
	})
}

func TestRunReportsErrors(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	socket := filepath.Join(t.TempDir(), "gone", "berthd.sock")
	var failures []error
	Run(ctx, socket, clock.Real{}, func() bool { return true }, func(err error) {
		failures = append(failures, err)
		cancel()
	})
	if len(failures) == 0 || !errors.Is(failures[0], fs.ErrNotExist) {
		t.Errorf("failures %v, want that the directory is missing", failures)
	}
}

// A file system without space or inodes does not end the heartbeat of a daemon that lives: a restart after it would
// have the node's pods evicted.
func TestBeatOnAFullDisk(t *testing.T) {
	for options, fill := range map[string]int{"size=16k": 128 << 10, "nr_inodes=3": 0} { // the folder's own inode, and those of two files
		t.Run(options, func(t *testing.T) {
			dir := t.TempDir()
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
				t.Fatalf("this test mounts a file system and needs root: %v", err)
			}
			defer func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) }()
			socket := filepath.Join(dir, "berthd.sock")
			must(t, Beat(socket, time.Hour))
			var err error
			for n := 0; err == nil; n++ {
				err = os.WriteFile(filepath.Join(dir, fmt.Sprint(n)), make([]byte, fill), 0o600)
			}
			if !errors.Is(err, unix.ENOSPC) {
				t.Fatalf("the disk is not full: %v", err)
			}
			for now := time.Hour; now < 40*time.Hour; now += 13 * time.Hour {
				if err := Beat(socket, now); err != nil || !Recent(socket, now+Interval) {
					t.Errorf("after %v: %v", now, err)
				}
			}
			must(t, Stop(socket))
		})
	}
}

// The plugin of one release reads the heartbeat of another's daemon.
func TestStoredHeartbeat(t *testing.T) {
	samples, err := filepath.Glob("testdata/stored/*/heartbeat")
	if err != nil || len(samples) == 0 {
		t.Fatalf("there are no samples: %v", err)
	}
	socket := filepath.Join(t.TempDir(), "berthd.sock")
	for _, sample := range samples {
		data, err := os.ReadFile(sample)
		must(t, err)
		must(t, os.WriteFile(Path(socket), data, 0o600))
		if at := 5 * time.Second; !Recent(socket, at+Grace-1) || Recent(socket, at+Grace) || Recent(socket, at-1) {
			t.Errorf("%s is not taken for one of five seconds after the boot", sample)
		}
		must(t, Beat(socket, 5*time.Second))
		if again, err := os.ReadFile(Path(socket)); err != nil || string(again) != string(data) {
			t.Errorf("%s: written as %q, %v", sample, again, err)
		}
	}
}
