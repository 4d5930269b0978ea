package main

import (
	"bytes"
	"fmt"
	"io"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Release is the information in the labels of all images of a build
// (https://specs.opencontainers.org/image-spec/annotations).
type Release struct {
	Version  string // such as v1.2.3
	Revision string // the commit
	Source   string // URL of the source code
	Licenses string // an SPDX expression
}

// labels are an image's labels, and its annotations in the index.
func (s ImageSpec) labels(r Release) map[string]string {
	labels := map[string]string{}
	for key, value := range map[string]string{
		"title": s.Title, "description": s.Description, "version": r.Version,
		"revision": r.Revision, "source": r.Source, "licenses": r.Licenses,
	} {
		if value != "" {
			labels["org.opencontainers.image."+key] = value
		}
	}
	for key, value := range s.Labels {
		labels[key] = value
	}
	return labels
}

// epoch is the time of everything in an image. With the time of the build, the same sources would produce another digest
// each time.
var epoch = v1.Time{Time: time.Unix(0, 0).UTC()}

// image makes the image for a platform, with one layer.
func (s ImageSpec) image(root rootfs, platform v1.Platform, labels map[string]string, compress bool) (v1.Image, error) {
	layer, err := layerOf(root, compress)
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.ConfigFile(base, &v1.ConfigFile{
		OS: platform.OS, Architecture: platform.Architecture, Variant: platform.Variant, Created: epoch,
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Entrypoint: s.Entrypoint, Cmd: s.Cmd, Env: s.Env, User: s.User, WorkingDir: s.WorkingDir,
			ExposedPorts: set(s.Ports), Labels: labels,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make the image's configuration: %w", err)
	}
	if img, err = mutate.Append(img, mutate.Addendum{Layer: layer, History: v1.History{Created: epoch, CreatedBy: "tools/images"}}); err != nil {
		return nil, fmt.Errorf("add the layer: %w", err)
	}
	annotated, ok := mutate.Annotations(img, labels).(v1.Image)
	if !ok {
		return nil, fmt.Errorf("annotate the image: result is not an image")
	}
	return annotated, nil
}

func layerOf(root rootfs, compress bool) (v1.Layer, error) {
	data, err := root.layer()
	if err != nil {
		return nil, err
	}
	if !compress {
		return static.NewLayer(data, types.OCIUncompressedLayer), nil
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, fmt.Errorf("compress the layer: %w", err)
	}
	return layer, nil
}

// built is an image for one platform.
type built struct {
	platform v1.Platform
	image    v1.Image
	sbom     []byte // an SPDX document, or nil
}

// index joins the images of all platforms, each followed by the attestation that carries its SBOM.
func index(images []built, labels map[string]string) (v1.ImageIndex, error) {
	out := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	var attestations []mutate.IndexAddendum
	for _, b := range images {
		out = mutate.AppendManifests(out, mutate.IndexAddendum{
			Add: b.image, Descriptor: v1.Descriptor{Platform: &b.platform},
		})
		if b.sbom == nil {
			continue
		}
		attestation, err := attest(b)
		if err != nil {
			return nil, err
		}
		attestations = append(attestations, attestation)
	}
	out = mutate.AppendManifests(out, attestations...)
	annotated, ok := mutate.Annotations(out, labels).(v1.ImageIndex)
	if !ok {
		return nil, fmt.Errorf("annotate the index: result is not an index")
	}
	return annotated, nil
}

func set(names []string) map[string]struct{} {
	if len(names) == 0 {
		return nil
	}
	out := map[string]struct{}{}
	for _, name := range names {
		out[name] = struct{}{}
	}
	return out
}
