package networkpolicy

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/wire"
	"github.com/berthnet/berth/internal/statefile"
)

// fileName is the name of the stored file, which contains an Update in one part.
const fileName = "networkpolicies.pb"

const (
	// storeDelay is the maximum delay before changes of sets only are stored, because a set may have 160,000 elements, and the
	// delay after a failed write. A restart before that restores the previous sets if the operator is down.
	storeDelay = 10 * time.Second
	// storeRate limits how many bytes per second these changes cause to be written.
	storeRate = 1 << 20
)

// stored is the file. It must not be used concurrently.
type stored struct {
	dir    string
	clock  clock.Clock
	log    *slog.Logger
	state  *policy.State    // the state to store
	due    <-chan time.Time // when to write the file; nil if it is up to date
	failed bool             // the last write failed
	size   int              // of the file, in bytes
}

// load returns the stored update, or nil.
func (f *stored) load() *policy.Update {
	data, err := statefile.Read(filepath.Join(f.dir, fileName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var all wire.Update
	if err == nil {
		err = proto.Unmarshal(data, &all)
	}
	var u *policy.Update
	if err == nil {
		var d wire.Decoder
		u, err = d.Add(&all)
	}
	if err != nil {
		f.log.Warn("stored network policies cannot be read: pods wait for the operator", "file", filepath.Join(f.dir, fileName), "err", err)
		return nil
	}
	return u
}

// delay returns the delay for changes of sets only, depending on the size of the file.
func (f *stored) delay() time.Duration {
	return min(storeDelay, time.Duration(f.size)*time.Second/storeRate)
}

// changed schedules a write, now or after a delay.
func (f *stored) changed(now bool) {
	switch {
	case now:
		f.write()
	case f.due == nil:
		f.due = f.clock.After(f.delay())
	}
}

// flush writes pending changes.
func (f *stored) flush() {
	if f.due != nil {
		f.write()
	}
}

// write writes the file, or removes it if that fails: after a restart, an outdated file would revert the kernel to older policies,
// whereas without a file the kernel keeps its state. An error is logged once, because it matters only after a restart.
func (f *stored) write() {
	f.due = nil
	err := f.tryWrite()
	if err != nil {
		f.due = f.clock.After(storeDelay)
		_ = os.Remove(filepath.Join(f.dir, fileName))
		if !f.failed {
			f.log.Warn("network policies cannot be stored, will try again", "file", filepath.Join(f.dir, fileName), "err", err)
		}
	}
	f.failed = err != nil
}

// Discard removes the stored file, and reports whether there was one.
func Discard(dir string) (bool, error) {
	err := os.Remove(filepath.Join(dir, fileName))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func (f *stored) tryWrite() error {
	parts := wire.Encode(f.state.Whole())
	for _, p := range parts[1:] {
		parts[0].Pods, parts[0].Policies, parts[0].Sets = append(parts[0].Pods, p.Pods...), append(parts[0].Policies, p.Policies...), append(parts[0].Sets, p.Sets...)
	}
	parts[0].More = false
	data, err := proto.Marshal(parts[0])
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return err
	}
	f.size = len(data)
	path, tmp := filepath.Join(f.dir, fileName), filepath.Join(f.dir, "."+fileName+".new")
	if err := statefile.Create(tmp, data, 0o600); err != nil {
		return err
	}
	if err := failpoint.Hit("networkpolicy.store.written"); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return failpoint.Hit("networkpolicy.store.after")
}
