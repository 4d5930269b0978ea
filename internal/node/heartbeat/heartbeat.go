// Package heartbeat distinguishes a daemon that is restarting from one that is gone.
//
// The plugin has no state, and a STATUS that fails during a restart of berthd would make the node
// NotReady and get its pods evicted. Therefore berthd keeps a file beside its socket up to date while its own
// STATUS succeeds. The plugin checks the file's age if no daemon responds.
//
// Age is measured on the boot clock, which cannot be set. The file is on the tmpfs of the socket, so
// that it does not survive a reboot.
package heartbeat

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/statefile"
)

// Interval is the interval at which the daemon renews its heartbeat.
const Interval = 5 * time.Second

// Grace is how long after the last heartbeat a daemon that does not respond counts as
// restarting (docs/contribute/architecture.md, "Pod lifecycle": STATUS does not fail then).
const Grace = time.Minute

// Path returns the heartbeat file of a socket.
func Path(socket string) string { return filepath.Join(filepath.Dir(socket), "heartbeat") }

// Beat renews the heartbeat of a socket's daemon. boot is the time since boot.
func Beat(socket string, boot time.Duration) error {
	path := Path(socket)
	tmp := path + ".new"
	data := []byte(strconv.FormatInt(int64(boot), 10) + "\n")
	err := statefile.Create(tmp, data, 0o644)
	if errors.Is(err, syscall.ENOSPC) {
		_ = os.Remove(tmp) // it may not exist
		return overwrite(path, data)
	}
	if err != nil {
		return fmt.Errorf("writing the heartbeat: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("putting the heartbeat in place: %w", err)
	}
	return nil
}

// overwrite renews an existing heartbeat on a full file system. A reader sees either the old or the
// new bytes, whose times are seconds apart.
func overwrite(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("overwriting the heartbeat on a full file system: %w", err)
	}
	_, err = f.WriteAt(data, 0)
	return errors.Join(err, f.Truncate(int64(len(data))), f.Close())
}

// Stop removes the heartbeat, if there is one: the daemon is no longer ready.
func Stop(socket string) error {
	if err := os.Remove(Path(socket)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the heartbeat: %w", err)
	}
	return nil
}

// Recent reports whether the last heartbeat is younger than Grace. It is false for a missing or
// unreadable heartbeat, and for one from the future.
func Recent(socket string, boot time.Duration) bool {
	data, err := statefile.Read(Path(socket))
	if err != nil {
		return false
	}
	last, err := strconv.ParseInt(strings.TrimSuffix(string(data), "\n"), 10, 64)
	if err != nil {
		return false
	}
	age := boot - time.Duration(last)
	return age >= 0 && age < Grace
}

// retry is how often a daemon that is not ready checks whether it is. It is short, so that a daemon that is
// killed soon after becoming ready has left a heartbeat.
const retry = 100 * time.Millisecond

// Run renews the heartbeat of a socket while good returns true, and removes it otherwise. It passes an
// error to failed once until renewing works again. When ctx ends it returns and leaves the heartbeat
// for a successor.
func Run(ctx context.Context, socket string, clk clock.Clock, good func() bool, failed func(error)) {
	failing := false
	for {
		var err error
		next := retry
		if good() {
			err = Beat(socket, clk.Boot())
			next = Interval
		} else {
			err = Stop(socket)
		}
		if err != nil && !failing {
			failed(err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return
		case <-clk.After(next):
		}
	}
}
