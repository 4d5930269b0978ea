package attachment

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/berthnet/berth/internal/statefile"
)

// Read returns the records in dir and changes nothing there, so that it may be called while a daemon serves. Records of
// another instance and damaged ones are left out.
func Read(dir, instanceID string) ([]Record, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading attachment records: %w", err)
	}
	var list []Record
	for _, e := range entries {
		if name := e.Name(); !e.Type().IsRegular() || !strings.HasPrefix(name, recordPrefix) || !strings.HasSuffix(name, recordSuffix) {
			continue
		}
		data, err := statefile.Read(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("reading attachment records: %w", err)
		}
		if r, err := DecodeRecord(data); err == nil && r.InstanceID == instanceID {
			list = append(list, r)
		}
	}
	return list, nil
}
