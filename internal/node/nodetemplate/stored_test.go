package nodetemplate

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/berthnet/berth/internal/statefile"
	"github.com/berthnet/berth/test/harness/samples"
)

// The choice of every release is read, and what is written has all that each release reads.
func TestStoredChoice(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, choiceFile)
	samples.Check(t, samples.Format{Files: "template*.json", Type: reflect.TypeFor[stored](), Again: func(data []byte) ([]byte, error) {
		var of struct{ InstanceID string }
		if err := errors.Join(os.WriteFile(path, data, 0o600), statefile.Decode(data, &of)); err != nil {
			return nil, err
		}
		c, ok, err := load(dir, choiceFile, of.InstanceID)
		if err != nil || !ok {
			return nil, errors.Join(err, errors.New("it is not taken for this node's"))
		}
		if err := save(dir, choiceFile, of.InstanceID, c); err != nil {
			return nil, err
		}
		return os.ReadFile(path)
	}})
}
