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

// Peek reads the records of an instance in dir, which may be missing, and counts the damaged ones, with those that an
// earlier Open quarantined. Unlike Open it changes nothing, and may be called while a daemon serves dir.
func Peek(dir, instanceID string) (records []Record, damaged int, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("reading attachment records: %w", err)
	}
	for _, e := range entries {
		name := e.Name()
		if !e.Type().IsRegular() || !strings.HasPrefix(name, recordPrefix) || !strings.HasSuffix(name, recordSuffix) && !strings.HasSuffix(name, recordSuffix+badSuffix) {
			continue
		}
		data, err := statefile.Read(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) { // the attachment ended
			continue
		}
		if err != nil {
			return nil, 0, fmt.Errorf("reading attachment records: %w", err)
		}
		switch r, err := DecodeRecord(data); {
		case err != nil || strings.HasSuffix(name, badSuffix):
			damaged++
		case r.InstanceID == instanceID:
			records = append(records, r)
		}
	}
	return records, damaged, nil
}
