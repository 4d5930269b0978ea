package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/distribution/reference"
	"sigs.k8s.io/yaml"
)

// Spec describes images. It is read from a YAML file. Unknown fields are rejected.
type Spec struct {
	Images []ImageSpec `json:"images"`
}

// ImageSpec is one image, the same for each platform except for its files.
type ImageSpec struct {
	// Name is the image's repository, such as berth-node. A name with a tag is complete; others get the prefix and tag of
	// the command line.
	Name string `json:"name"`
	// Aliases are additional complete names, with tags, in its archives.
	Aliases []string `json:"aliases,omitempty"`
	// File is the base name of its archives; by default the last part of Name.
	File string `json:"file,omitempty"`
	// Title and Description are its labels org.opencontainers.image.title and .description.
	Title       string `json:"title,omitempty"`
	Description string `json:"description,omitempty"`
	// Labels are additional labels, with their full names.
	Labels map[string]string `json:"labels,omitempty"`

	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	Env        []string `json:"env,omitempty"`
	// User is a numeric UID or UID:GID, so that a kubelet can tell whether it is root.
	User       string   `json:"user,omitempty"`
	WorkingDir string   `json:"workingDir,omitempty"`
	Ports      []string `json:"ports,omitempty"`

	Files []FileSpec `json:"files"`
}

// FileSpec is one entry of an image's file system, owned by root. Exactly one of From, Link, Text, Roots and Directory
// defines its kind. Parent folders are made.
type FileSpec struct {
	// To is its absolute path in the image.
	To string `json:"to"`
	// From is a file to copy: an absolute path, or a path below the folder of the command line, in which $ARCH stands for
	// the platform's architecture.
	From string `json:"from,omitempty"`
	// Libraries also copies the interpreter and the shared libraries of the
	// program From. This machine must be able to run it.
	Libraries bool `json:"libraries,omitempty"`
	// Link is the target of a symbolic link.
	Link string `json:"link,omitempty"`
	// Links are the names of symbolic links to the file, in the folder of To.
	Links []string `json:"links,omitempty"`
	// Text is the content of a file.
	Text string `json:"text,omitempty"`
	// Roots is a file with Mozilla's root certificates, from golang.org/x/crypto/x509roots.
	Roots bool `json:"roots,omitempty"`
	// Directory is a folder.
	Directory bool `json:"directory,omitempty"`
	// Mode is the permissions in octal, by default 0755 for files of From and folders, otherwise 0644.
	Mode string `json:"mode,omitempty"`
}

// readSpec reads and checks a Spec file.
func readSpec(file string) (Spec, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return Spec{}, fmt.Errorf("read the description of the images: %w", err)
	}
	var s Spec
	if err := yaml.UnmarshalStrict(data, &s); err != nil {
		return Spec{}, fmt.Errorf("read the description of the images %s: %w", file, err)
	}
	if err := s.check(); err != nil {
		return Spec{}, fmt.Errorf("%s: %w", file, err)
	}
	return s, nil
}

var userID = regexp.MustCompile(`^(\d+(:\d+)?)?$`)

func (s Spec) check() error {
	if len(s.Images) == 0 {
		return fmt.Errorf("images is empty, expected at least one image")
	}
	files := map[string]bool{}
	for i, image := range s.Images {
		at := fmt.Sprintf("images[%d] (%s)", i, image.Name)
		if _, err := reference.ParseNormalizedNamed(image.Name); err != nil {
			return fmt.Errorf("%s: name: %w", at, err)
		}
		for _, alias := range image.Aliases {
			if named, err := reference.ParseNormalizedNamed(alias); err != nil {
				return fmt.Errorf("%s: aliases: %q: %w", at, alias, err)
			} else if _, ok := named.(reference.NamedTagged); !ok {
				return fmt.Errorf("%s: aliases: %q has no tag", at, alias)
			}
		}
		if files[image.file()] {
			return fmt.Errorf("%s: file: another image's archive is called %s too", at, image.file())
		}
		files[image.file()] = true
		if !userID.MatchString(image.User) {
			return fmt.Errorf("%s: user is %q, expected UID or UID:GID in numbers", at, image.User)
		}
		for j, f := range image.Files {
			if err := f.check(); err != nil {
				return fmt.Errorf("%s: files[%d] (%s): %w", at, j, f.To, err)
			}
		}
	}
	return nil
}

func (f FileSpec) check() error {
	if !path.IsAbs(f.To) || path.Clean(f.To) != f.To || f.To == "/" {
		return fmt.Errorf("to is %q, expected a clean absolute path", f.To)
	}
	kinds := 0
	for _, is := range []bool{f.From != "", f.Link != "", f.Text != "", f.Roots, f.Directory} {
		if is {
			kinds++
		}
	}
	if kinds != 1 {
		return fmt.Errorf("expected exactly one of from, link, text, roots and directory, found %d", kinds)
	}
	if f.Libraries && f.From == "" {
		return fmt.Errorf("libraries goes only with from")
	}
	_, err := f.mode()
	return err
}

// mode returns the permissions of the entry.
func (f FileSpec) mode() (int64, error) {
	switch {
	case f.Mode != "":
		var mode int64
		if _, err := fmt.Sscanf(f.Mode, "%o", &mode); err != nil || mode < 0 || mode > 0o7777 {
			return 0, fmt.Errorf("mode is %q, expected permissions in octal such as 0755", f.Mode)
		}
		return mode, nil
	case f.From != "" || f.Directory:
		return 0o755, nil
	case f.Link != "":
		return 0o777, nil
	}
	return 0o644, nil
}

// source returns the path of From for an architecture.
func (f FileSpec) source(folder, arch string) string {
	from := os.Expand(f.From, func(name string) string {
		if name == "ARCH" {
			return arch
		}
		return "$" + name
	})
	if filepath.IsAbs(from) {
		return from
	}
	return filepath.Join(folder, from)
}

// file returns the base name of the image's archives.
func (s ImageSpec) file() string {
	if s.File != "" {
		return s.File
	}
	name := path.Base(s.Name)
	name, _, _ = strings.Cut(name, ":")
	return name
}

// names returns all names of the image in containerd's form, its own first.
func (s ImageSpec) names(prefix, tag string) ([]reference.NamedTagged, error) {
	own, err := s.reference(prefix, tag)
	if err != nil {
		return nil, err
	}
	names := []reference.NamedTagged{own}
	for _, alias := range s.Aliases {
		name, err := ImageSpec{Name: alias}.reference("", "")
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

// reference returns the image's full name in containerd's form, with registry and tag.
func (s ImageSpec) reference(prefix, tag string) (reference.NamedTagged, error) {
	name := s.Name
	if prefix != "" && !strings.Contains(path.Base(name), ":") {
		name = strings.TrimSuffix(prefix, "/") + "/" + name
	}
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return nil, fmt.Errorf("name %q: %w", name, err)
	}
	if tagged, ok := named.(reference.NamedTagged); ok {
		return tagged, nil
	}
	tagged, err := reference.WithTag(named, tag)
	if err != nil {
		return nil, fmt.Errorf("tag %q of %s: %w", tag, name, err)
	}
	return tagged, nil
}
