package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"time"
)

// rootfs is the content of an image by absolute path.
type rootfs map[string]entry

// entry is a file, folder or symbolic link, owned by root.
type entry struct {
	kind    byte  // type flag of archive/tar
	mode    int64 // permissions
	content []byte
	link    string
	from    string // source file, if copied
	roots   bool   // the file with the root certificates
}

// assemble reads the content of an image for an architecture. Relative sources are below folder.
func assemble(files []FileSpec, folder, arch string) (rootfs, error) {
	root := rootfs{}
	for _, f := range files {
		if err := root.add(f, folder, arch); err != nil {
			return nil, fmt.Errorf("%s: %w", f.To, err)
		}
	}
	return root, root.parents()
}

func (r rootfs) add(f FileSpec, folder, arch string) error {
	mode, err := f.mode()
	if err != nil {
		return err
	}
	e := entry{kind: tar.TypeReg, mode: mode, content: []byte(f.Text)}
	switch {
	case f.From != "":
		e.from = f.source(folder, arch)
		if e.content, err = os.ReadFile(e.from); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s does not exist", e.from)
		} else if err != nil {
			return err
		}
	case f.Link != "":
		e.kind, e.link = tar.TypeSymlink, f.Link
	case f.Directory:
		e.kind = tar.TypeDir
	case f.Roots:
		e.roots = true
		if e.content, err = rootCertificates(); err != nil {
			return err
		}
	}
	if err := r.put(f.To, e); err != nil {
		return err
	}
	for _, name := range f.Links {
		if err := r.put(path.Join(path.Dir(f.To), name), entry{kind: tar.TypeSymlink, mode: 0o777, link: path.Base(f.To)}); err != nil {
			return err
		}
	}
	if f.Libraries {
		return r.addLibraries(e.from)
	}
	return nil
}

// addLibraries adds a program's shared libraries at the paths where its dynamic linker finds them. Programs may share a library.
func (r rootfs) addLibraries(program string) error {
	libraries, err := sharedLibraries(program)
	if err != nil {
		return err
	}
	for _, library := range libraries {
		if _, there := r[library]; there {
			continue
		}
		content, err := os.ReadFile(library)
		if err != nil {
			return fmt.Errorf("read a library of %s: %w", program, err)
		}
		r[library] = entry{kind: tar.TypeReg, mode: 0o755, content: content, from: library}
	}
	return nil
}

func (r rootfs) put(to string, e entry) error {
	if _, there := r[to]; there {
		return fmt.Errorf("%s is listed twice", to)
	}
	r[to] = e
	return nil
}

// parents adds the folders above the entries.
func (r rootfs) parents() error {
	for _, name := range slices.Sorted(maps.Keys(r)) {
		for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
			above, there := r[dir]
			if !there {
				r[dir] = entry{kind: tar.TypeDir, mode: 0o755}
			} else if above.kind != tar.TypeDir {
				return fmt.Errorf("%s: its parent %s is not a folder", name, dir)
			}
		}
	}
	return nil
}

// layer returns the content as a reproducible tar archive: entries are sorted by name, have the same time, and belong to root.
func (r rootfs) layer() ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(r)) {
		e := r[name]
		header := tar.Header{
			Typeflag: e.kind, Name: name[1:], Linkname: e.link, Mode: e.mode, Size: int64(len(e.content)),
			ModTime: time.Unix(0, 0).UTC(), Format: tar.FormatPAX,
		}
		if e.kind == tar.TypeDir {
			header.Name += "/"
		}
		if err := w.WriteHeader(&header); err != nil {
			return nil, fmt.Errorf("pack %s: %w", name, err)
		}
		if _, err := w.Write(e.content); err != nil {
			return nil, fmt.Errorf("pack %s: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	return out.Bytes(), nil
}
