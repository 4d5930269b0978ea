package archive

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

// maxFiles is the maximum number of files that are copied from another bundle.
const maxFiles = 10000

// Copy adds the files and errors of another bundle below a folder. That bundle is not
// trusted: Copy cleans its file names, bounds its files and removes secrets again.
func (s *Sink) Copy(folder string, r io.Reader) error {
	gz, err := gzip.NewReader(r)
	if err != nil {
		return fmt.Errorf("the node's bundle: %w", err)
	}
	in := tar.NewReader(gz)
	complete := false
	for n := 0; ; n++ {
		h, err := in.Next()
		switch {
		case errors.Is(err, io.EOF) && !complete:
			return errors.New("the node's bundle ends early")
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("the node's bundle: %w", err)
		case n >= maxFiles:
			return fmt.Errorf("the node's bundle has more than %d files", maxFiles)
		case h.Typeflag != tar.TypeReg:
			continue
		}
		name := withoutRoot(h.Name)
		if name == ErrorsFile { // its content is in the index too
			continue
		}
		// The other bundle's mark of truncation may exceed the limit. A file that claims to be
		// larger is not read to its end, which may be far away.
		most := s.most + int64(len(cutHere)) + 1
		content, cut, err := read(&head{most: most}, io.LimitReader(in, most))
		if err != nil {
			return fmt.Errorf("the node's bundle: %s: %w", name, err)
		}
		if cut = cut || h.Size > most; h.Size > most {
			content = append(content, "\n"+cutHere...)
		}
		if name == IndexFile {
			complete = true
			s.takeOver(folder, content)
		}
		if err := s.add(path.Join(folder, name), content, cut); err != nil {
			return err
		}
	}
}

// takeOver records the errors in another bundle's index.
func (s *Sink) takeOver(folder string, data []byte) {
	var index Index
	if err := json.Unmarshal(data, &index); err != nil {
		s.Failed(folder, fmt.Errorf("%s: %w", IndexFile, err))
		return
	}
	for _, e := range index.Errors[:min(len(index.Errors), maxFiles)] {
		s.Failed(e.Part, errors.New(e.Error))
	}
}

func withoutRoot(name string) string {
	name = clean(name)
	if _, rest, ok := strings.Cut(name, "/"); ok {
		return rest
	}
	return name
}

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
