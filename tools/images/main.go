// Command images packs built programs into OCI images, without a container runtime or a registry. A YAML file describes
// their content (Spec).
//
//	images -spec deploy/images.yaml -files dist/programs -version v1.2.3 -out dist/images
//
// For each image it writes: a folder FILE, which is an OCI layout of an index of all platforms, for `crane push` or
// `skopeo copy`; FILE-ARCH.tar for each platform, for `ctr image import`, `docker load` and `podman load`; and
// FILE-ARCH.spdx.json, its SBOM, which the index carries too. digests.txt lists the digests of the indexes. The same files
// produce the same digests, on any machine at any time.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/distribution/reference"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	} else if err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

// options are the command line.
type options struct {
	spec, files, out string
	prefix, tag      string
	platforms        []v1.Platform
	formats          []string
	only             []string
	compress         bool
	release          Release
}

const (
	formatLayout  = "layout"
	formatArchive = "archive"
	formatSBOM    = "sbom"
)

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("images", flag.ContinueOnError)
	flags.StringVar(&o.spec, "spec", "", "YAML file that describes the images")
	flags.StringVar(&o.files, "files", ".", "folder of relative sources")
	flags.StringVar(&o.out, "out", "dist/images", "folder to write to")
	flags.StringVar(&o.prefix, "prefix", "", "registry and path before the images' names, such as registry.example/network")
	flags.StringVar(&o.tag, "tag", "", "tag of the images (default: the version)")
	platforms := flags.String("platforms", "linux/amd64,linux/arm64", "platforms, separated by commas")
	formats := flags.String("formats", "layout,archive,sbom", "output formats, separated by commas")
	only := flags.String("only", "", "names of archives to write, separated by commas (default: all)")
	flags.BoolVar(&o.compress, "compress", true, "compress the layers")
	flags.StringVar(&o.release.Version, "version", "", "version for the labels")
	flags.StringVar(&o.release.Revision, "revision", "", "commit for the labels")
	flags.StringVar(&o.release.Source, "source", "", "URL of the source code for the labels")
	flags.StringVar(&o.release.Licenses, "licenses", "", "SPDX expression for the labels")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.spec == "" || flags.NArg() > 0 {
		return o, errors.New("expected -spec FILE and no further arguments")
	}
	if o.tag == "" {
		o.tag = o.release.Version
	}
	o.formats, o.only = list(*formats), list(*only)
	for _, format := range o.formats {
		if !slices.Contains([]string{formatLayout, formatArchive, formatSBOM}, format) {
			return o, fmt.Errorf("-formats has %q, expected layout, archive or sbom", format)
		}
	}
	for _, name := range list(*platforms) {
		platform, err := v1.ParsePlatform(name)
		if err != nil || platform.OS == "" || platform.Architecture == "" {
			return o, fmt.Errorf("-platforms has %q, expected OS/ARCHITECTURE such as linux/amd64", name)
		}
		o.platforms = append(o.platforms, *platform)
	}
	if len(o.platforms) == 0 {
		return o, errors.New("-platforms is empty, expected OS/ARCHITECTURE such as linux/amd64")
	}
	return o, nil
}

func list(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return r == ',' })
}

func run(args []string, out io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	spec, err := readSpec(o.spec)
	if err != nil {
		return err
	}
	images, err := o.choose(spec)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return fmt.Errorf("make the folder for images: %w", err)
	}
	var summaries []summary
	for i, image := range images {
		fmt.Fprintf(os.Stderr, "Packing %s (%d of %d)\n", image.file(), i+1, len(images))
		s, err := o.pack(image)
		if err != nil {
			return fmt.Errorf("image %s: %w", image.Name, err)
		}
		summaries = append(summaries, s...)
	}
	return report(out, filepath.Join(o.out, "digests.txt"), summaries)
}

// choose selects the images of -only.
func (o options) choose(spec Spec) ([]ImageSpec, error) {
	if len(o.only) == 0 {
		return spec.Images, nil
	}
	var images []ImageSpec
	for _, name := range o.only {
		i := slices.IndexFunc(spec.Images, func(s ImageSpec) bool { return s.file() == name })
		if i < 0 {
			return nil, fmt.Errorf("-only has %q, which %s does not describe", name, o.spec)
		}
		images = append(images, spec.Images[i])
	}
	return images, nil
}

// summary describes something that was written.
type summary struct {
	name     reference.NamedTagged
	platform string // "index" for all of them
	digest   v1.Hash
	size     int64 // bytes that a node pulls; 0 for an index
	where    string
}

// pack makes one image for all platforms and writes it.
func (o options) pack(spec ImageSpec) ([]summary, error) {
	names, err := spec.names(o.prefix, o.tag)
	if err != nil {
		return nil, err
	}
	name := names[0]
	labels := spec.labels(o.release)
	file := filepath.Join(o.out, spec.file())
	var images []built
	var out []summary
	for _, platform := range o.platforms {
		b, err := o.build(spec, name, platform, labels)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", platform, err)
		}
		images = append(images, b)
		written, err := o.write(file+"-"+platform.Architecture+platform.Variant, names, b)
		if err != nil {
			return nil, err
		}
		out = append(out, written)
	}
	if !slices.Contains(o.formats, formatLayout) {
		return out, nil
	}
	ii, err := index(images, labels)
	if err != nil {
		return nil, err
	}
	digest, err := ii.Digest()
	if err != nil {
		return nil, fmt.Errorf("digest of the index: %w", err)
	}
	return append(out, summary{name: name, platform: "index", digest: digest, where: file + "/"}), writeLayout(file, name, ii)
}

func (o options) build(spec ImageSpec, name reference.NamedTagged, platform v1.Platform, labels map[string]string) (built, error) {
	b := built{platform: platform}
	root, err := assemble(spec.Files, o.files, platform.Architecture)
	if err != nil {
		return b, err
	}
	if b.image, err = spec.image(root, platform, labels, o.compress); err != nil {
		return b, err
	}
	if slices.Contains(o.formats, formatSBOM) {
		b.sbom, err = sbom(name, b.image, platform, root, o.release)
	}
	return b, err
}

// write writes the outputs for one platform to FILE.tar and FILE.spdx.json.
func (o options) write(file string, names []reference.NamedTagged, b built) (summary, error) {
	s := summary{name: names[0], platform: b.platform.String()}
	var err error
	if s.digest, err = b.image.Digest(); err != nil {
		return s, fmt.Errorf("digest of the image: %w", err)
	}
	if s.size, err = pulled(b.image); err != nil {
		return s, err
	}
	if b.sbom != nil {
		if err := os.WriteFile(file+".spdx.json", b.sbom, 0o644); err != nil {
			return s, fmt.Errorf("write the SBOM: %w", err)
		}
	}
	if slices.Contains(o.formats, formatArchive) {
		s.where = file + ".tar"
		return s, writeArchive(s.where, names, b)
	}
	return s, nil
}

// pulled is the number of bytes that a node transfers for an image.
func pulled(img v1.Image) (int64, error) {
	manifest, err := img.Manifest()
	if err != nil {
		return 0, fmt.Errorf("manifest of the image: %w", err)
	}
	size := manifest.Config.Size
	for _, l := range manifest.Layers {
		size += l.Size
	}
	return size, nil
}

// report prints a summary, and lists the indexes by digest in a file, as NAME:TAG@DIGEST.
func report(out io.Writer, file string, summaries []summary) error {
	var digests strings.Builder
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "IMAGE\tPLATFORM\tSIZE\tDIGEST\tWRITTEN TO")
	for _, s := range summaries {
		size := "-"
		if s.size > 0 {
			size = fmt.Sprintf("%.1f MB", float64(s.size)/1e6)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", reference.FamiliarString(s.name), s.platform, size, s.digest, s.where)
		if s.platform == "index" {
			fmt.Fprintf(&digests, "%s@%s\n", reference.FamiliarString(s.name), s.digest)
		}
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print the summary: %w", err)
	}
	if digests.Len() == 0 {
		return nil
	}
	if err := os.WriteFile(file, []byte(digests.String()), 0o644); err != nil {
		return fmt.Errorf("write the digests: %w", err)
	}
	return nil
}
