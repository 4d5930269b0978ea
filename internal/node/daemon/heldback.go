package daemon

import (
	"errors"

	"github.com/berthnet/berth/internal/node/attachment"
)

// A full file system must not keep a pod from being removed. What needs space of
// a DEL are the records that its addresses cool. Where those cannot be written the
// attachment's own record stays, as releasing, and holds the addresses back: the
// sweep, or the next start, finishes the rest when there is space.

// heldBack is the outcome of a removal that left nothing in the kernel, and
// addresses whose cooling could not be recorded.
type heldBack struct{ err error }

// Error implements error.
func (h *heldBack) Error() string { return h.err.Error() }

// Unwrap gives the file system's error.
func (h *heldBack) Unwrap() error { return h.err }

// unlessHeldBack is the outcome of a removal for who asked for it: it is done.
func (d *Daemon) unlessHeldBack(key attachment.Key, err error) error {
	h, ok := errors.AsType[*heldBack](err)
	if !ok {
		return err
	}
	d.writable.failed.Set()
	d.Log.Warn("removed, but its addresses stay out of use until that can be recorded", "attachment", key.String(), "err", h)
	return nil
}
