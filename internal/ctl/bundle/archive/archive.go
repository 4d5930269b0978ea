// Package archive writes a support bundle: one tar.gz, streamed file by file, without
// secrets and within size limits. Its last two files list its content (index.json) and
// what could not be read (errors.txt).
//
//	archive.go  the archive, and its file
//	part.go     parts to collect, each with a deadline
//	content.go  bounded content of a file
//	copy.go     reading and copying another bundle
package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/redact"
	"github.com/berthnet/berth/internal/version"
)

// Format is the version of the format of index.json.
const Format = 1

// The names of the bundle's last two files.
const (
	IndexFile  = "index.json"
	ErrorsFile = "errors.txt"
)

// Limits bound the size of a bundle, in bytes before compression.
type Limits struct {
	File  int64 // of one file; logs keep their newest lines, other files their beginning
	Total int64 // of all files; files that do not fit are omitted and listed as errors
}

// Index is the content of index.json.
type Index struct {
	Format  int       `json:"format"`
	Version string    `json:"version"` // of the program that wrote it
	Scope   string    `json:"scope"`   // the node, or "cluster"
	Begun   time.Time `json:"begun"`
	Ended   time.Time `json:"ended"`
	Files   []File    `json:"files"`
	Errors  []Error   `json:"errors"`
}

// File is a file of the bundle.
type File struct {
	Name string `json:"name"`
	Size int64  `json:"size"` // bytes
	Cut  bool   `json:"cut,omitempty"`
	From string `json:"from"` // the part that added it
}

// Error describes something that could not be read.
type Error struct {
	Part  string `json:"part"`
	Error string `json:"error"`
}

// Archive is a bundle that is being written. Its methods may be called concurrently.
type Archive struct {
	root   string // the folder that all is in
	limits Limits
	now    func() time.Time

	mu    sync.Mutex // guards all below; held while a file is written
	gz    *gzip.Writer
	tar   *tar.Writer
	index Index
	names map[string]bool
	total int64
	err   error // of the output; nothing is written after it
}

// New starts a bundle. All its files are in the folder root.
func New(w io.Writer, root, scope string, limits Limits, now func() time.Time) *Archive {
	gz := gzip.NewWriter(w)
	return &Archive{
		root: root, limits: limits, now: now, gz: gz, tar: tar.NewWriter(gz), names: map[string]bool{},
		index: Index{Format: Format, Version: version.String(), Scope: scope, Begun: now().UTC(), Files: []File{}, Errors: []Error{}},
	}
}

var errFull = errors.New("omitted: the bundle has reached its maximum size (--max-size)")

// add writes a file. The content must have no secrets. It fails if the output fails or the
// bundle is full.
func (a *Archive) add(from, name string, content []byte, cut bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return a.err
	}
	name = a.free(clean(name))
	if a.total+int64(len(content)) > a.limits.Total {
		return fmt.Errorf("%s: %w", name, errFull)
	}
	if err := a.write(name, content); err != nil {
		return err
	}
	a.total += int64(len(content))
	a.index.Files = append(a.index.Files, File{Name: name, Size: int64(len(content)), Cut: cut, From: from})
	return nil
}

// write writes a file regardless of limits. a.mu is held.
func (a *Archive) write(name string, content []byte) error {
	err := a.tar.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: path.Join(a.root, name), Mode: 0o600, Size: int64(len(content)), ModTime: a.now().UTC().Truncate(time.Second), Format: tar.FormatPAX,
	})
	if err == nil {
		_, err = a.tar.Write(content)
	}
	if err != nil {
		a.err = fmt.Errorf("write the bundle: %w", err)
	}
	return a.err
}

// Failed records an error of a part.
func (a *Archive) Failed(part string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.index.Errors = append(a.index.Errors, Error{part, redact.Text(err.Error())})
}

// broken returns the error of the output, if any.
func (a *Archive) broken() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// Close writes errors.txt and index.json and ends the archive. It does not close the output.
func (a *Archive) Close() (Index, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.index.Ended = a.now().UTC()
	slices.SortStableFunc(a.index.Errors, func(x, y Error) int { return strings.Compare(x.Part, y.Part) })
	index, err := json.MarshalIndent(a.index, "", "  ")
	if a.err != nil {
		err = a.err
	}
	if err == nil {
		err = a.write(ErrorsFile, a.errorsText())
	}
	if err == nil {
		err = a.write(IndexFile, append(index, '\n'))
	}
	if err == nil {
		err = errors.Join(a.tar.Close(), a.gz.Close())
	}
	return a.index, err
}

func (a *Archive) errorsText() []byte {
	if len(a.index.Errors) == 0 {
		return []byte("Everything could be read.\n")
	}
	var b bytes.Buffer
	for _, e := range a.index.Errors {
		fmt.Fprintf(&b, "%s: %s\n", e.Part, e.Error)
	}
	return b.Bytes()
}

// free returns name, with a number appended if a file has it already. a.mu is held.
func (a *Archive) free(name string) string {
	out := name
	for i := 2; a.names[out] || out == IndexFile || out == ErrorsFile; i++ {
		out = fmt.Sprintf("%s.%d", name, i)
	}
	a.names[out] = true
	return out
}

// clean returns a safe relative path for a name that is not trusted.
func clean(name string) string {
	name = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || strings.ContainsRune(`\:*?"<>|`, r) {
			return '_'
		}
		return r
	}, name)
	parts := strings.FieldsFunc(name, func(r rune) bool { return r == '/' })
	for i, p := range parts {
		if strings.Trim(p, ".") == "" {
			p = "_"
		}
		parts[i] = p[:min(len(p), 200)]
	}
	if len(parts) == 0 {
		return "_"
	}
	return strings.Join(parts, "/")
}

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
