// Command release writes the files of a release from programs and images that are already built (make release). With
// -chart it only writes the chart package (make chart).
//
//	go run ./deploy/release -version v0.1.0 -programs dist/programs -images dist/images -out dist/release
//
// Files depend on the sources and the version only: the same commit has the same files on any machine at any time.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/berthnet/berth/deploy"
)

// repository is where releases are published.
const repository = "https://github.com/berthnet/berth"

func main() {
	if err := run(os.Args[1:], os.Stdout); errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	} else if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	r := release{files: map[string][]byte{}}
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.StringVar(&r.version, "version", "", "version of the release, such as v1.2.3")
	flags.StringVar(&r.programs, "programs", "dist/programs", "folder of the programs: in a folder for each architecture, and SYSTEM-ARCH for other systems than Linux")
	flags.StringVar(&r.images, "images", "dist/images", "folder of the images' layouts, with digests.txt")
	flags.StringVar(&r.tree, "tree", ".", "folder of the sources, with CHANGELOG.md and LICENSE")
	archs := flags.String("archs", "amd64 arm64", "architectures, separated by spaces")
	clients := flags.String("clients", "darwin", "operating systems of kubectl-berth besides linux, separated by spaces")
	to := flags.String("out", "dist/release", "folder to write to, whose content is replaced")
	chart := flags.Bool("chart", false, "only write the chart package, into a folder whose content stays")
	if err := flags.Parse(args); err != nil {
		return err
	}
	r.archs, r.clients = strings.Fields(*archs), strings.Fields(*clients)
	if *chart {
		return r.chartOnly(*to, out)
	}
	if !versions.MatchString(r.version) {
		return fmt.Errorf("-version is %q, expected a version such as v1.2.3 or v1.2.3-rc.1", r.version)
	}
	if err := r.collect(); err != nil {
		return err
	}
	if err := r.write(*to); err != nil {
		return err
	}
	for _, name := range r.names() {
		fmt.Fprintf(out, "%9.1f MB  %s\n", float64(len(r.files[name]))/1e6, filepath.Join(*to, name))
	}
	return nil
}

var versions = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)

// chartOnly writes the chart package of a checkout, whose images are not known.
func (r release) chartOnly(to string, out io.Writer) error {
	p, err := deploy.NewPackage(r.version, nil)
	if err != nil {
		return err
	}
	var data bytes.Buffer
	file := filepath.Join(to, p.File())
	if err := errors.Join(p.Write(&data), os.MkdirAll(to, 0o755), os.WriteFile(file, data.Bytes(), 0o644)); err != nil {
		return err
	}
	fmt.Fprintln(out, file)
	return nil
}
