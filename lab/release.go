package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/berthnet/berth/lab/run/host"
)

// releaseImages returns the images in the directory of a release (make release).
func releaseImages(dir string) ([]host.Archive, error) {
	list, err := os.ReadFile(filepath.Join(dir, "images.txt"))
	if err != nil {
		return nil, fmt.Errorf("images of a release: %w (make release writes one)", err)
	}
	var archives []host.Archive
	for line := range strings.Lines(string(list)) { // NAME:TAG@DIGEST
		named, _, _ := strings.Cut(line, "@")
		i := strings.LastIndex(named, ":")
		if i < 0 {
			return nil, fmt.Errorf("%s/images.txt: %q, want NAME:TAG@DIGEST", dir, line)
		}
		name, tag := named[:i], named[i+1:]
		archives = append(archives, host.Archive{File: filepath.Join(dir, path.Base(name)+"-"+tag+".oci.tar"), Name: name})
	}
	return archives, nil
}

// releaseChart returns the file of a release's chart package.
func releaseChart(dir string) (string, error) {
	found, err := filepath.Glob(filepath.Join(dir, "berth-*.tgz"))
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("chart of a release: %d files berth-*.tgz in %q, want one", len(found), dir)
	}
	return strings.Join(found, ""), err
}

// Use imports the images of another release on all machines. From then on, Install installs the chart of that release.
func (s *Chart) Use(ctx context.Context, dir string) error {
	archives, err := releaseImages(dir)
	if err != nil {
		return err
	}
	for _, m := range s.lab.machines.all() {
		for _, a := range archives {
			err = errors.Join(err, m.host.Import(ctx, a))
		}
	}
	s.lab.Kubelets.Release = dir
	return err
}

// Path returns the chart that Install installs: the package of the release, or a directory that is written first.
func (s *Chart) Path() (string, error) {
	l := s.lab
	if l.Kubelets.Release != "" {
		return releaseChart(l.Kubelets.Release)
	}
	dir := filepath.Join(l.Kube.dir, "chart")
	return dir, writeChart(dir)
}
