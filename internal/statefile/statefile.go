// Package statefile reads and makes the files in which programs keep what must
// outlast them. A FIFO or a device at the place of one would hold a program for
// good, or never end: nothing is read and written but regular files.
package statefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Largest is the most bytes that a file may have to be read: some ten times what
// the largest of them, an inventory of a big node, has.
const Largest = 16 << 20

// Read returns what a regular file has. A missing one is fs.ErrNotExist.
func Read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is %s, expected a regular file", path, info.Mode().Type())
	}
	data, err := io.ReadAll(io.LimitReader(f, Largest+1))
	if err == nil && len(data) > Largest {
		err = fmt.Errorf("%s is larger than %d bytes", path, Largest)
	}
	return data, err
}

// Create makes a new file with these bytes in place of whatever has the name, which
// a crash may have left. It may fail with a part of them written.
func Create(path string, data []byte, mode fs.FileMode) error {
	open := func() (*os.File, error) { return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode) }
	f, err := open()
	if errors.Is(err, fs.ErrExist) {
		if err = os.Remove(path); err == nil {
			f, err = open()
		}
	}
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}
