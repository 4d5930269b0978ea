package archive

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Output is a file that gets its name only once it is complete. Only its owner may read it.
type Output struct {
	*os.File
	path string
}

const partial = ".partial"

// Create creates an output. It fails if a file with the name exists.
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

// Keep closes the output and gives it its name. It removes the file if that fails.
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

// Drop closes and removes the output.
func (o *Output) Drop() error { return errors.Join(o.Close(), os.Remove(o.Name())) }
