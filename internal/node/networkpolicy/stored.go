package networkpolicy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/berthnet/berth/internal/policy/wire"
	"github.com/berthnet/berth/internal/statefile"
)

// fileName is that of the stored file, an Update in one part.
const fileName = "networkpolicies.pb"

// load takes in what was stored.
func (e *Enforcer) load() {
	data, err := statefile.Read(filepath.Join(e.Dir, fileName))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var stored wire.Update
	if err == nil {
		err = proto.Unmarshal(data, &stored)
	}
	if err == nil {
		var d wire.Decoder
		u, decodeErr := d.Add(&stored)
		if err = decodeErr; err == nil && u != nil {
			e.updates = append(e.updates, u)
			e.wake()
		}
	}
	if err != nil {
		e.Log.Warn("stored network policies cannot be read: pods wait for the operator", "file", fileName, "err", err)
	}
}

// storeDelay is how long changes of sets alone wait to be stored, as a set may have 160,000 elements.
const storeDelay = 10 * time.Second

// store has what is known stored, now or after storeDelay.
func (e *Enforcer) store(now bool) {
	switch {
	case now:
		e.write()
	case e.own.due == nil:
		e.own.due = e.Clock.After(storeDelay)
	}
}

// flush writes what was not stored yet.
func (e *Enforcer) flush() {
	if e.own.due != nil {
		e.write()
	}
}

// write writes the file. An error is logged once: it matters after a restart only.
func (e *Enforcer) write() {
	e.own.due = nil
	err := e.tryWrite()
	if err != nil {
		e.own.due = e.Clock.After(storeDelay)
		if !e.own.storeFailed {
			e.Log.Warn("network policies cannot be stored, will try again", "file", filepath.Join(e.Dir, fileName), "err", err)
		}
	}
	e.own.storeFailed = err != nil
}

// Discard removes the stored file, and tells whether there was one.
func Discard(dir string) (bool, error) {
	err := os.Remove(filepath.Join(dir, fileName))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func (e *Enforcer) tryWrite() error {
	parts := wire.Encode(e.state.Whole())
	for _, p := range parts[1:] {
		parts[0].Sets = append(parts[0].Sets, p.Sets...)
	}
	parts[0].More = false
	data, err := proto.Marshal(parts[0])
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	if err := os.MkdirAll(e.Dir, 0o700); err != nil {
		return err
	}
	path, tmp := filepath.Join(e.Dir, fileName), filepath.Join(e.Dir, "."+fileName+".new")
	if err := statefile.Create(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
