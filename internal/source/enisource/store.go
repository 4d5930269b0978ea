package enisource

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/statefile"
)

var _ = failpoint.Register("inventory.save.before", "inventory.save.after", "intent.save.before", "intent.save.after")

// Files keeps an inventory and an intent in a directory, as JSON files that are replaced atomically.
type Files struct{ Dir string }

const (
	inventoryName = "inventory.json"
	intentName    = "eni-intent.json"
)

// Load implements InventoryStore. An invalid file is an error.
func (f Files) Load() (eni.Inventory, bool, error) {
	data, err := statefile.Read(filepath.Join(f.Dir, inventoryName))
	if errors.Is(err, fs.ErrNotExist) {
		return eni.Inventory{}, false, nil
	}
	if err != nil {
		return eni.Inventory{}, false, fmt.Errorf("read the stored inventory: %w", err)
	}
	inv, err := eni.DecodeInventory(data)
	if err != nil {
		return eni.Inventory{}, false, fmt.Errorf("%s: %w", inventoryName, err)
	}
	return inv, true, nil
}

// Save implements InventoryStore.
func (f Files) Save(inv eni.Inventory) error { return f.replace(inventoryName, "inventory", inv) }

// Intents returns the store of the creation in flight.
func (f Files) Intents() eni.Intents { return intents{f} }

type intents struct{ f Files }

func (i intents) Load() (eni.Intent, bool, error) {
	var intent eni.Intent
	ok, err := statefile.LoadJSON(i.f.Dir, intentName, &intent)
	return intent, ok, err
}

func (i intents) Save(intent eni.Intent) error { return i.f.replace(intentName, "intent", intent) }

func (i intents) Clear() error {
	err := os.Remove(filepath.Join(i.f.Dir, intentName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("clear the ENI intent: %w", err)
	}
	return nil
}

func (f Files) replace(name, point string, v any) error {
	return failpoint.Around(point+".save", func() error { return statefile.ReplaceJSON(f.Dir, name, v) })
}

// inventoryFile writes the source's inventory, in the order of its changes.
type inventoryFile struct {
	s  *Source
	mu sync.Mutex // held during a write; no pod waits for it
}

// save changes the inventory in memory and writes the file.
func (f *inventoryFile) save(change func()) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.s.mu.Lock()
	change()
	inv := f.s.addresses.inv
	inv.Usable = f.s.addresses.usable
	f.s.mu.Unlock()
	if f.s.opts.Store == nil || inv.InstanceID == "" {
		return nil
	}
	return f.s.opts.Store.Save(inv)
}

// load takes the stored inventory, which is served if the supply is away.
func (f *inventoryFile) load() {
	s := f.s
	if s.opts.Store == nil {
		return
	}
	inv, ok, err := s.opts.Store.Load()
	switch {
	case err != nil:
		s.log.Warn("stored inventory not used", "err", err)
		return
	case !ok:
		return
	case inv.InstanceID != s.opts.InstanceID:
		s.log.Info("stored inventory is of another instance", "instance", inv.InstanceID)
		return
	}
	s.supply.Seed(inv)
	s.mu.Lock()
	defer s.mu.Unlock()
	a := &s.addresses
	a.inv, a.usable, a.served, a.unconfirmed = inv, inv.Usable, true, true
	a.adopt(inv)
	for _, r := range inv.Releasing {
		a.alloc.WithdrawThese([]netip.Prefix{r.Prefix})
	}
	s.program.Set()
}
