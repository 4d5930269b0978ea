package enisource

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/test/harness/samples"
)

// The inventory and the intent of every release are read, and what is written has all
// that each release reads.
func TestStoredInventoryAndIntent(t *testing.T) {
	f := Files{Dir: t.TempDir()}
	through := func(name string, rewrite func() (bool, error)) func([]byte) ([]byte, error) {
		path := filepath.Join(f.Dir, name)
		return func(data []byte) ([]byte, error) {
			if err := os.WriteFile(path, data, 0o600); err != nil {
				return nil, err
			}
			if ok, err := rewrite(); err != nil || !ok {
				return nil, err
			}
			return os.ReadFile(path)
		}
	}
	samples.Check(t,
		samples.Format{Files: "inventory*.json", Type: reflect.TypeFor[eni.Inventory](), Again: through(inventoryName, func() (bool, error) {
			inv, ok, err := f.Load()
			if err == nil && ok {
				err = f.Save(inv)
			}
			return ok, err
		})},
		samples.Format{Files: "eni-intent*.json", Type: reflect.TypeFor[eni.Intent](), Again: through(intentName, func() (bool, error) {
			intent, ok, err := f.Intents().Load()
			if err == nil && ok {
				err = f.Intents().Save(intent)
			}
			return ok, err
		})},
	)
}
