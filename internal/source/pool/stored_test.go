package pool

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/berthnet/berth/test/harness/samples"
)

// Blocks that every release stored are read, and what is written has all that each
// release reads.
func TestStoredBlocks(t *testing.T) {
	f := file{t.TempDir()}
	samples.Check(t, samples.Format{Files: blocksFile, Type: reflect.TypeFor[fileContent](), Again: func(data []byte) ([]byte, error) {
		path := filepath.Join(f.dir, blocksFile)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return nil, err
		}
		node, blocks, _, err := f.load()
		if err == nil {
			err = f.save(node, blocks)
		}
		if err != nil {
			return nil, err
		}
		return os.ReadFile(path)
	}})
}
