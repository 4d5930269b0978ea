package berthd

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/berthnet/berth/internal/statefile"
	"github.com/berthnet/berth/test/harness/samples"
)

// What every release remembered of the instance is read, and what is written has all
// that each release reads.
func TestStoredIdentity(t *testing.T) {
	path := filepath.Join(t.TempDir(), identityFile)
	samples.Check(t,
		samples.Format{Files: identityFile, Type: reflect.TypeFor[savedIdentity](), Again: func(data []byte) ([]byte, error) {
			var boot struct{ BootID string }
			if err := errors.Join(os.WriteFile(path, data, 0o600), statefile.Decode(data, &boot)); err != nil {
				return nil, err
			}
			id, ok := readIdentity(path, boot.BootID)
			if !ok {
				return nil, errors.New("it is not taken for this node's")
			}
			if err := writeIdentity(path, savedIdentity{boot.BootID, id}); err != nil {
				return nil, err
			}
			return os.ReadFile(path)
		}},
	)
}
