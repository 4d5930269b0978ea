package deploy

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"time"

	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
)

// Image is a published image.
type Image struct {
	Repository string // with the registry, such as registry.example/network/berth-node
	Digest     string // of the index of all platforms
}

// Package is the chart as a release publishes it.
type Package struct {
	Version string // of the chart: the version of the release without "v"

	files []*archive.BufferedFile
	chart *chart.Chart
}

var released = regexp.MustCompile(`^v([0-9]+\.[0-9]+\.[0-9]+(?:-[0-9A-Za-z.-]+)?)$`)

// NewPackage returns the chart of a version whose default values refer to images by their digests. Images that are not
// given keep their values. The chart's version is 0.0.0-gVERSION for a version that is not of the form v1.2.3.
func NewPackage(version string, images []Image) (Package, error) {
	p := Package{Version: "0.0.0-g" + version}
	if m := released.FindStringSubmatch(version); m != nil {
		p.Version = m[1]
	}
	var err error
	if p.files, err = embedded(); err != nil {
		return p, fmt.Errorf("read the chart: %w", err)
	}
	errs := []error{
		p.edit("Chart.yaml", `(?m)^#.*\nversion: 0\.0\.0-dev\nappVersion: dev$`, fmt.Sprintf("version: %s\nappVersion: %q", p.Version, version)),
	}
	for _, i := range images {
		name := regexp.QuoteMeta(path.Base(i.Repository))
		errs = append(
			errs,
			p.edit("values.yaml", `(?ms)^( +repository: )`+name+`$(.*?^ +digest: )""$`, "${1}"+i.Repository+"${2}"+i.Digest),
			p.edit("README.md", "(?s)(\\.image\\.repository` \\| `)"+name+"(`.*?\\.image\\.digest` \\| `)\"\"", "${1}"+i.Repository+"${2}"+i.Digest),
		)
	}
	if err := errors.Join(errs...); err != nil {
		return p, fmt.Errorf("package the chart: %w", err)
	}
	if p.chart, err = loader.LoadFiles(p.files); err != nil {
		return p, fmt.Errorf("package the chart: %w", err)
	}
	return p, nil
}

// ReadPackage reads a package that Write wrote.
func ReadPackage(file string) (Package, error) {
	f, err := os.Open(file)
	if err != nil {
		return Package{}, fmt.Errorf("read the chart package: %w", err)
	}
	defer f.Close()
	p := Package{}
	if p.files, err = archive.LoadArchiveFiles(f); err != nil {
		return p, fmt.Errorf("read the chart package %s: %w", file, err)
	}
	if p.chart, err = loader.LoadFiles(p.files); err != nil {
		return p, fmt.Errorf("read the chart package %s: %w", file, err)
	}
	p.Version = p.chart.Metadata.Version
	return p, nil
}

// edit replaces the only match of an expression in a file.
func (p Package) edit(name, expression, replacement string) error {
	re := regexp.MustCompile(expression)
	for _, f := range p.files {
		if f.Name != name {
			continue
		}
		if n := len(re.FindAllIndex(f.Data, -1)); n != 1 {
			return fmt.Errorf("%s has %d matches of %s, expected one", name, n, expression)
		}
		f.Data = re.ReplaceAll(f.Data, []byte(replacement))
		return nil
	}
	return fmt.Errorf("the chart has no file %s", name)
}

// File is the name of the package's file.
func (p Package) File() string { return "berth-" + p.Version + ".tgz" }

// Write writes the package in Helm's format. The same chart has the same bytes.
func (p Package) Write(w io.Writer) error {
	compressed := gzip.NewWriter(w)
	out := tar.NewWriter(compressed)
	for _, f := range p.files {
		header := &tar.Header{Name: "berth/" + f.Name, Mode: 0o644, Size: int64(len(f.Data)), ModTime: time.Unix(0, 0)}
		if err := out.WriteHeader(header); err != nil {
			return fmt.Errorf("package %s: %w", f.Name, err)
		}
		if _, err := out.Write(f.Data); err != nil {
			return fmt.Errorf("package %s: %w", f.Name, err)
		}
	}
	return errors.Join(out.Close(), compressed.Close())
}

// Render returns the objects of the package for a release, like the function Render.
func (p Package) Render(r Release) (Objects, error) {
	r.chart = p.chart
	return r.render()
}
