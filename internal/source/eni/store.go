package eni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/statefile"
)

var _ = failpoint.Register("inventory.save.before", "inventory.save.after", "intent.save.before", "intent.save.after")

// Files keeps an inventory and an intent in a directory, as JSON, each
// replaced atomically. Nothing is synced: the directory is meant to be on a
// tmpfs, and to vanish with the kernel state.
type Files struct{ Dir string }

const (
	inventoryFile = "inventory.json"
	intentFile    = "eni-intent.json"
)

// Load implements InventoryStore. A file that makes no sense is an error.
func (f Files) Load() (eni.Inventory, bool, error) {
	data, err := statefile.Read(filepath.Join(f.Dir, inventoryFile))
	if errors.Is(err, fs.ErrNotExist) {
		return eni.Inventory{}, false, nil
	}
	if err != nil {
		return eni.Inventory{}, false, fmt.Errorf("read the stored inventory: %w", err)
	}
	inv, err := eni.DecodeInventory(data)
	if err != nil {
		return eni.Inventory{}, false, fmt.Errorf("%s: %w", inventoryFile, err)
	}
	return inv, true, nil
}

// Save implements InventoryStore.
func (f Files) Save(inv eni.Inventory) error { return f.replace(inventoryFile, "inventory", inv) }

// Intents gives the store of the creation under way.
func (f Files) Intents() eni.Intents { return intents{f} }

type intents struct{ f Files }

func (i intents) Load() (eni.Intent, bool, error) {
	data, err := statefile.Read(filepath.Join(i.f.Dir, intentFile))
	if errors.Is(err, fs.ErrNotExist) {
		return eni.Intent{}, false, nil
	}
	var intent eni.Intent
	if err == nil {
		err = json.Unmarshal(data, &intent)
	}
	if err != nil {
		return eni.Intent{}, false, fmt.Errorf("read %s: %w", intentFile, err)
	}
	return intent, true, nil
}

func (i intents) Save(intent eni.Intent) error { return i.f.replace(intentFile, "intent", intent) }

func (i intents) Clear() error {
	err := os.Remove(filepath.Join(i.f.Dir, intentFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("clear the ENI intent: %w", err)
	}
	return nil
}

// replace writes a file beside its place and moves it there.
func (f Files) replace(name, point string, v any) error {
	if err := failpoint.Hit(point + ".save.before"); err != nil {
		return err
	}
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	tmp := filepath.Join(f.Dir, "."+name+".new")
	if err := os.MkdirAll(f.Dir, 0o700); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	if err := statefile.Create(tmp, data, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := os.Rename(tmp, filepath.Join(f.Dir, name)); err != nil {
		return fmt.Errorf("replace %s: %w", name, err)
	}
	return failpoint.Hit(point + ".save.after")
}
