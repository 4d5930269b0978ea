package pool

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/test/harness/check"
	"github.com/berthnet/berth/test/harness/samples"
)

func TestBlocksFile(t *testing.T) {
	f := file{t.TempDir()}
	if _, _, ok, err := f.load(); ok || err != nil {
		t.Errorf("without a file: %v, %v", ok, err)
	}
	want := []blockFacts{
		blockOf("default-0", "10.0.0.0/27", "fd00::/123"), blockOf("v6-1", "fd00::1:0/112", ""), blockOf("one-7", "10.1.0.7/32", ""),
	}
	want[2].draining = true
	want[0].withheld = []withheldRange{{netip.MustParsePrefix("10.0.0.7/32"), "Node node-2"}}
	check.OK(t, f.save("node-1", want))
	node, got, ok, err := f.load()
	if err != nil || !ok || node != "node-1" {
		t.Fatalf("node %q, %v, %v", node, ok, err)
	}
	check.Same(t, got, want, cmp.AllowUnexported(blockFacts{}, withheldRange{}), cmp.Comparer(func(x, y netip.Prefix) bool { return x == y }))
}

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
