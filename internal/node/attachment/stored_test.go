package attachment

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/berthnet/berth/test/harness/samples"
)

// Records of every release are read, and what is written has all that each release reads.
func TestStoredRecords(t *testing.T) {
	samples.Check(t,
		samples.Format{Files: recordPrefix + "*" + recordSuffix, Type: reflect.TypeFor[Record](), Again: again(DecodeRecord)},
		samples.Format{Files: coolingPrefix + "*" + recordSuffix, Type: reflect.TypeFor[Cooling](), Again: again(DecodeCooling)},
		samples.Format{Files: freedFile, Type: reflect.TypeFor[freedContent](), Again: again(decode[freedContent])},
	)
}

func again[T interface{ validate() error }](read func([]byte) (T, error)) func([]byte) ([]byte, error) {
	return func(data []byte) ([]byte, error) {
		v, err := read(data)
		if err != nil {
			return nil, err
		}
		return encode(v)
	}
}

// A state that an earlier release does not know would have its daemon quarantine the
// record: each that is written is in a sample.
func TestEveryStateIsInASample(t *testing.T) {
	var all strings.Builder
	files, err := filepath.Glob(filepath.Join(samples.Folder, "*", recordPrefix+"*"))
	must(t, err)
	for _, f := range files {
		data, err := os.ReadFile(f)
		must(t, err)
		all.Write(data)
	}
	for _, s := range []State{Pending, Ready, Releasing} {
		if !strings.Contains(all.String(), `"state":"`+string(s)+`"`) {
			t.Errorf("no sample is %s", s)
		}
	}
}
