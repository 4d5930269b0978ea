package archive

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Output is a file that has its name only once it is whole. Nobody but its owner may
// read it.
type Output struct {
	*os.File
	path string
}

const partial = ".partial"

// Create makes an output. A file that is there is not replaced.
func Create(path string) (*Output, error) {
	if _, err := os.Lstat(path); err == nil {
		return nil, fmt.Errorf("%s: %w", path, fs.ErrExist)
	}
	f, err := os.OpenFile(path+partial, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return &Output{f, path}, nil
}

// Keep ends the output and gives it its name. With an error nothing is left.
func (o *Output) Keep() error {
	err := errors.Join(o.Sync(), o.Close())
	if err == nil {
		err = os.Rename(o.Name(), o.path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(o.Name()))
	}
	return err
}

// Drop leaves nothing behind.
func (o *Output) Drop() error { return errors.Join(o.Close(), os.Remove(o.Name())) }
