package archive

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Open reads a whole bundle: its files by name, without their common folder.
func Open(r io.Reader) (files map[string][]byte, index Index, err error) {
	gz, err := gzip.NewReader(r)
	if err != nil {
		return nil, index, err
	}
	files = map[string][]byte{}
	for in := tar.NewReader(gz); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, index, err
		}
		if files[withoutRoot(h.Name)], err = io.ReadAll(in); err != nil {
			return nil, index, err
		}
	}
	if err := json.Unmarshal(files[IndexFile], &index); err != nil {
		return nil, index, fmt.Errorf("%s: %w", IndexFile, err)
	}
	return files, index, nil
}
