package enisource

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/statefile"
)

var _ = failpoint.Register("inventory.save.before", "inventory.save.after", "intent.save.before", "intent.save.after")

// Files keeps an inventory and an intent in a directory, as JSON, each
// replaced atomically.
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
	var intent eni.Intent
	ok, err := statefile.LoadJSON(i.f.Dir, intentFile, &intent)
	return intent, ok, err
}

func (i intents) Save(intent eni.Intent) error { return i.f.replace(intentFile, "intent", intent) }

func (i intents) Clear() error {
	err := os.Remove(filepath.Join(i.f.Dir, intentFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("clear the ENI intent: %w", err)
	}
	return nil
}

func (f Files) replace(name, point string, v any) error {
	return failpoint.Around(point+".save", func() error { return statefile.ReplaceJSON(f.Dir, name, v) })
}
