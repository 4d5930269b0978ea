package attachment

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/statefile"
)

// folder is a directory of small files that are replaced atomically. It has no lock: callers never use
// the same file concurrently.
type folder struct {
	dir string
	seq atomic.Uint64 // names temporary files
}

// newFolder creates the directory (0700) if it is missing.
func newFolder(dir string) (*folder, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return &folder{dir: dir}, nil
}

// read returns the content of a file.
func (f *folder) read(name string) ([]byte, error) { return statefile.Read(filepath.Join(f.dir, name)) }

func (f *folder) rename(from, to string) error {
	return os.Rename(filepath.Join(f.dir, from), filepath.Join(f.dir, to))
}

// write replaces a file of the directory. It does not sync, because a kernel crash also ends the state
// that the records describe.
func (f *folder) write(name string, data []byte) error {
	tmp := filepath.Join(f.dir, fmt.Sprintf("%s%d", tmpPrefix, f.seq.Add(1)))
	err := statefile.Create(tmp, data, 0o600)
	if err == nil {
		err = f.rename(filepath.Base(tmp), name)
	}
	if err != nil {
		return errors.Join(err, f.remove(filepath.Base(tmp)))
	}
	return nil
}

func (f *folder) remove(name string) error {
	err := os.Remove(filepath.Join(f.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// IsNoSpace reports whether an error means that the file system has no space or quota left.
func IsNoSpace(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// overwrite writes into an existing file, whose space is available even on a full file system. It pads data
// with spaces to the former size and writes once, so that a crash of the process cannot leave half a record.
func (f *folder) overwrite(name string, data []byte) error {
	file, err := os.OpenFile(filepath.Join(f.dir, name), os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if missing := int(info.Size()) - len(data); missing > 0 {
		data = append(bytes.TrimSuffix(data, []byte("\n")), bytes.Repeat([]byte(" "), missing)...)
		data = append(data, '\n')
	}
	// Allocate all space before writing, because a partial write would damage the record.
	if err := allocate(file, len(data)); err != nil {
		return fmt.Errorf("allocating space in %s: %w", name, err)
	}
	_, err = file.WriteAt(data, 0)
	return err
}

// probeFile is removed at the next start if a crash leaves it behind.
const probeFile = tmpPrefix + "probe"

// probe writes and removes a file the way records are written. It must not be called concurrently.
func (f *folder) probe() error {
	if err := f.write(probeFile, []byte("can this be written?\n")); err != nil {
		return fmt.Errorf("writing into %s: %w", f.dir, err)
	}
	if err := f.remove(probeFile); err != nil {
		return fmt.Errorf("removing from %s: %w", f.dir, err)
	}
	return nil
}
