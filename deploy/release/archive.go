package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"
)

// file is a file of an archive.
type file struct {
	name string
	mode int64
	data []byte
}

// read returns all files of a folder in alphabetical order.
func read(from fs.FS, mode int64) (files []file, err error) {
	err = fs.WalkDir(from, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := fs.ReadFile(from, name)
		files = append(files, file{name, mode, data})
		return err
	})
	return files, err
}

// pack writes a tar archive. Owners and times are constant, so that the same files have the same archive.
func pack(to io.Writer, files []file) error {
	out := tar.NewWriter(to)
	for _, f := range files {
		if err := out.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: time.Unix(0, 0)}); err != nil {
			return fmt.Errorf("pack %s: %w", f.name, err)
		}
		if _, err := out.Write(f.data); err != nil {
			return fmt.Errorf("pack %s: %w", f.name, err)
		}
	}
	return out.Close()
}

// compress returns a compressed tar archive.
func compress(files []file) ([]byte, error) {
	var data bytes.Buffer
	out := gzip.NewWriter(&data)
	err := errors.Join(pack(out, files), out.Close())
	return data.Bytes(), err
}
