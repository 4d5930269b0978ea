package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/distribution/reference"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// nameAnnotations are the annotations from which importers of a layout take the image's name: containerd the first,
// others the tag of the second.
func nameAnnotations(name reference.NamedTagged) map[string]string {
	return map[string]string{
		"io.containerd.image.name":          name.String(),
		"org.opencontainers.image.ref.name": name.Tag(),
	}
}

// writeLayout writes an index as an OCI layout, in place of the folder's content.
func writeLayout(folder string, name reference.NamedTagged, ii v1.ImageIndex) error {
	if err := os.RemoveAll(folder); err != nil {
		return fmt.Errorf("clear the layout: %w", err)
	}
	path, err := layout.Write(folder, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return fmt.Errorf("write the layout %s: %w", folder, err)
	}
	if err := path.AppendIndex(ii, layout.WithAnnotations(nameAnnotations(name))); err != nil {
		return fmt.Errorf("write the layout %s: %w", folder, err)
	}
	return nil
}

// writeArchive writes the image of one platform as a tar archive that is both an OCI layout, for containerd, podman and
// skopeo, and in the format of `docker save`, whose manifest.json `docker load` reads.
func writeArchive(file string, names []reference.NamedTagged, b built) (err error) {
	temporary := file + ".part"
	f, err := os.Create(temporary)
	if err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	defer func() {
		if err != nil {
			os.Remove(temporary)
			err = fmt.Errorf("write the archive %s: %w", file, err)
		}
	}()
	defer f.Close()
	a := archive{tar.NewWriter(f)}
	if err := a.image(names, b); err != nil {
		return err
	}
	if err := a.Close(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(temporary, file)
}

// archive is an OCI layout in a tar archive.
type archive struct{ *tar.Writer }

func (a archive) image(names []reference.NamedTagged, b built) error {
	manifest, err := partial.Descriptor(b.image)
	if err != nil {
		return err
	}
	manifest.Platform = &b.platform
	var manifests []v1.Descriptor // the same image under each name
	for _, name := range names {
		named := *manifest
		named.Annotations = nameAnnotations(name)
		manifests = append(manifests, named)
	}
	entry, config, err := dockerEntry(names, b.image)
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name    string
		content any
	}{
		{"oci-layout", map[string]string{"imageLayoutVersion": "1.0.0"}},
		{"index.json", v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: manifests}},
		{"manifest.json", []tarball.Descriptor{entry}},
	} {
		data, err := json.Marshal(f.content)
		if err != nil {
			return err
		}
		if err := a.file(f.name, int64(len(data)), bytes.NewReader(data)); err != nil {
			return err
		}
	}
	return a.blobs(b.image, manifest.Digest, config)
}

// dockerEntry is the image's entry of manifest.json, and its configuration's digest.
func dockerEntry(names []reference.NamedTagged, img v1.Image) (tarball.Descriptor, v1.Hash, error) {
	config, err := img.ConfigName()
	if err != nil {
		return tarball.Descriptor{}, v1.Hash{}, err
	}
	out := tarball.Descriptor{Config: blobPath(config)}
	for _, name := range names {
		out.RepoTags = append(out.RepoTags, reference.FamiliarString(name))
	}
	layers, err := img.Layers()
	if err != nil {
		return tarball.Descriptor{}, v1.Hash{}, err
	}
	for _, l := range layers {
		digest, err := l.Digest()
		if err != nil {
			return tarball.Descriptor{}, v1.Hash{}, err
		}
		out.Layers = append(out.Layers, blobPath(digest))
	}
	return out, config, nil
}

func (a archive) blobs(img v1.Image, manifest, config v1.Hash) error {
	for _, blob := range []struct {
		digest v1.Hash
		read   func() ([]byte, error)
	}{{manifest, img.RawManifest}, {config, img.RawConfigFile}} {
		data, err := blob.read()
		if err != nil {
			return err
		}
		if err := a.file(blobPath(blob.digest), int64(len(data)), bytes.NewReader(data)); err != nil {
			return err
		}
	}
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	for _, l := range layers {
		if err := a.layer(l); err != nil {
			return err
		}
	}
	return nil
}

func (a archive) layer(l v1.Layer) error {
	digest, err := l.Digest()
	if err != nil {
		return err
	}
	size, err := l.Size()
	if err != nil {
		return err
	}
	content, err := l.Compressed()
	if err != nil {
		return err
	}
	defer content.Close()
	return a.file(blobPath(digest), size, content)
}

func (a archive) file(name string, size int64, content io.Reader) error {
	if err := a.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, ModTime: time.Unix(0, 0).UTC()}); err != nil {
		return err
	}
	_, err := io.Copy(a, content)
	return err
}

func blobPath(digest v1.Hash) string {
	return filepath.ToSlash(filepath.Join("blobs", digest.Algorithm, digest.Hex))
}
