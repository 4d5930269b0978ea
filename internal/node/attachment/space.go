package attachment

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// IsNoSpace tells whether an error is for want of space, or of quota, in the file
// system.
func IsNoSpace(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// overwrite writes into a file that exists, for which a full file system has
// room: its own. Spaces fill what it had beyond data, so that there is one write,
// which no end of this process tears.
func (s *Store) overwrite(name string, data []byte) error {
	f, err := os.OpenFile(filepath.Join(s.dir, name), os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if missing := int(info.Size()) - len(data); missing > 0 {
		data = append(bytes.TrimSuffix(data, []byte("\n")), bytes.Repeat([]byte(" "), missing)...)
		data = append(data, '\n')
	}
	// Room for all of it before any: half a record would be a damaged one.
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, int64(len(data))); err != nil {
		return fmt.Errorf("making room in %s: %w", name, err)
	}
	_, err = f.WriteAt(data, 0)
	return err
}
