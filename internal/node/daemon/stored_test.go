package daemon

import (
	"reflect"
	"testing"

	"github.com/berthnet/berth/internal/statefile"
	"github.com/berthnet/berth/test/harness/samples"
)

// What every release remembered of the node is read, and what is written has all that
// each release reads.
func TestStoredMark(t *testing.T) {
	samples.Check(t,
		samples.Format{Files: usableName, Type: reflect.TypeFor[usableFile](), Again: func(data []byte) ([]byte, error) {
			var f usableFile
			if err := statefile.Decode(data, &f); err != nil {
				return nil, err
			}
			return statefile.Encode(f)
		}},
	)
}
