package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const testSpec = `
images:
  - name: probe
    aliases: [other.example/probe:1]
    title: A probe
    entrypoint: [/probe]
    cmd: [wait]
    env: [PATH=/]
    user: "65532:65532"
    files:
      - {to: /probe, from: $ARCH/probe, links: [other]}
      - {to: /etc/ssl/certs/ca-certificates.crt, roots: true}
      - {to: /etc/motd, text: "hello\n"}
      - {to: /tmp, directory: true, mode: "1777"}
`

// packTest packs testSpec in a folder, with this test's program for all architectures, and returns the folder of the
// images.
func packTest(t *testing.T, dir string, flags ...string) string {
	t.Helper()
	program, err := os.Executable()
	ok(t, err)
	data, err := os.ReadFile(program)
	ok(t, err)
	for _, arch := range []string{"amd64", "arm64"} {
		ok(t, os.MkdirAll(filepath.Join(dir, arch), 0o755))
		ok(t, os.WriteFile(filepath.Join(dir, arch, "probe"), data, 0o644))
	}
	spec, out := filepath.Join(dir, "spec.yaml"), filepath.Join(dir, "out")
	ok(t, os.WriteFile(spec, []byte(testSpec), 0o644))
	ok(t, run(append([]string{
		"-spec", spec, "-files", dir, "-out", out, "-prefix", "registry.example/net",
		"-version", "v1.2.3", "-revision", "0123abc", "-source", "https://source.example", "-licenses", "Apache-2.0",
	}, flags...), io.Discard))
	return out
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Images do not depend on the folder, nor on times and permissions of the files.
func TestImagesAreReproducible(t *testing.T) {
	here := t.TempDir()
	there := filepath.Join(t.TempDir(), "in another folder", "folder")
	first := packTest(t, here)
	packTest(t, there)
	old := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	for _, arch := range []string{"amd64", "arm64"} {
		ok(t, os.Chtimes(filepath.Join(there, arch, "probe"), old, old))
		ok(t, os.Chmod(filepath.Join(there, arch, "probe"), 0o700))
	}
	a, b := contents(t, first), contents(t, packTest(t, there))
	for name, data := range a {
		if !bytes.Equal(data, b[name]) {
			t.Errorf("%s differs", name)
		}
	}
	if len(a) != len(b) || len(a) < 10 {
		t.Errorf("%d and %d files were written, want the same files", len(a), len(b))
	}
}

func contents(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	ok(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		out[name] = data
		return err
	}))
	return out
}

func TestLayoutContainsAllPlatforms(t *testing.T) {
	out := packTest(t, t.TempDir())
	top, err := layout.ImageIndexFromPath(filepath.Join(out, "probe"))
	ok(t, err)
	ok(t, validate.Index(top, validate.Fast)) // without the content of attestations, which are not images
	manifest, err := top.IndexManifest()
	ok(t, err)
	if len(manifest.Manifests) != 1 { // crane pushes a layout of one entry
		t.Fatalf("%d entries in index.json, want one", len(manifest.Manifests))
	}
	if name := manifest.Manifests[0].Annotations["io.containerd.image.name"]; name != "registry.example/net/probe:v1.2.3" {
		t.Errorf("name of the image = %q", name)
	}
	ii, err := top.ImageIndex(manifest.Manifests[0].Digest)
	ok(t, err)
	images, err := ii.IndexManifest()
	ok(t, err)
	var platforms []string
	for _, m := range images.Manifests {
		platforms = append(platforms, m.Platform.String())
	}
	if want := []string{"linux/amd64", "linux/arm64", "unknown/unknown", "unknown/unknown"}; !slices.Equal(platforms, want) {
		t.Errorf("platforms = %q, want %q", platforms, want)
	}
	if images.Annotations["org.opencontainers.image.version"] != "v1.2.3" {
		t.Errorf("annotations of the index = %q", images.Annotations)
	}
	img, err := ii.Image(images.Manifests[1].Digest)
	ok(t, err)
	ok(t, validate.Image(img))
	checkConfig(t, img)
	digests, err := os.ReadFile(filepath.Join(out, "digests.txt"))
	ok(t, err)
	if want := "registry.example/net/probe:v1.2.3@" + manifest.Manifests[0].Digest.String() + "\n"; string(digests) != want {
		t.Errorf("digests.txt = %q, want %q", digests, want)
	}
}

func checkConfig(t *testing.T, img v1.Image) {
	t.Helper()
	file, err := img.ConfigFile()
	ok(t, err)
	c := file.Config
	if file.Architecture != "arm64" || !file.Created.Equal(time.Unix(0, 0)) ||
		!slices.Equal(c.Entrypoint, []string{"/probe"}) || !slices.Equal(c.Cmd, []string{"wait"}) ||
		!slices.Equal(c.Env, []string{"PATH=/"}) || c.User != "65532:65532" {
		t.Errorf("configuration of the image = %+v", file)
	}
	for key, want := range map[string]string{
		"title": "A probe", "version": "v1.2.3", "revision": "0123abc", "source": "https://source.example", "licenses": "Apache-2.0",
	} {
		if got := c.Labels["org.opencontainers.image."+key]; got != want {
			t.Errorf("label %s = %q, want %q", key, got, want)
		}
	}
}

// From an archive, containerd reads the OCI layout and docker manifest.json. Both must contain the same image.
func TestArchiveWorksWithContainerdAndDocker(t *testing.T) {
	for _, flags := range [][]string{nil, {"-compress=false"}} {
		out := packTest(t, t.TempDir(), flags...)
		archive := filepath.Join(out, "probe-arm64.tar")
		docker, err := tarball.ImageFromPath(archive, nil)
		ok(t, err)
		ok(t, validate.Image(docker))
		checkConfig(t, docker)

		dir := t.TempDir()
		untar(t, archive, dir)
		top, err := layout.ImageIndexFromPath(dir)
		ok(t, err)
		ok(t, validate.Index(top, validate.Fast)) // containerd expects compressed layers
		manifest, err := top.IndexManifest()
		ok(t, err)
		if len(manifest.Manifests) != 2 || manifest.Manifests[1].Annotations["io.containerd.image.name"] != "other.example/probe:1" {
			t.Errorf("layout = %v, want the image under both names", manifest.Manifests)
		}
		entry := manifest.Manifests[0]
		if entry.Annotations["io.containerd.image.name"] != "registry.example/net/probe:v1.2.3" || entry.Platform.String() != "linux/arm64" {
			t.Errorf("image of the layout = %v", entry)
		}
		oci, err := top.Image(entry.Digest)
		ok(t, err)
		a, err := oci.ConfigName()
		ok(t, err)
		b, err := docker.ConfigName()
		ok(t, err)
		if a != b {
			t.Errorf("image IDs = %s and %s, want the same", a, b)
		}
	}
}

func untar(t *testing.T, archive, dir string) {
	t.Helper()
	f, err := os.Open(archive)
	ok(t, err)
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err == io.EOF {
			return
		}
		ok(t, err)
		data, err := io.ReadAll(r)
		ok(t, err)
		path := filepath.Join(dir, filepath.FromSlash(h.Name))
		ok(t, os.MkdirAll(filepath.Dir(path), 0o755))
		ok(t, os.WriteFile(path, data, 0o644))
	}
}

func TestLayerContent(t *testing.T) {
	out := packTest(t, t.TempDir(), "-compress=false")
	img, err := tarball.ImageFromPath(filepath.Join(out, "probe-amd64.tar"), nil)
	ok(t, err)
	layers, err := img.Layers()
	ok(t, err)
	content, err := layers[0].Uncompressed()
	ok(t, err)
	defer content.Close()
	var got []string
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		ok(t, err)
		if h.Uid != 0 || h.Gid != 0 || !h.ModTime.Equal(time.Unix(0, 0)) {
			t.Errorf("%s: owner = %d:%d, time = %s, want 0:0 and the epoch", h.Name, h.Uid, h.Gid, h.ModTime)
		}
		got = append(got, h.FileInfo().Mode().String()+" "+h.Name+" "+h.Linkname)
	}
	want := []string{
		"drwxr-xr-x etc/ ", "-rw-r--r-- etc/motd ", "drwxr-xr-x etc/ssl/ ", "drwxr-xr-x etc/ssl/certs/ ",
		"-rw-r--r-- etc/ssl/certs/ca-certificates.crt ", "Lrwxrwxrwx other probe", "-rwxr-xr-x probe ", "dtrwxrwxrwx tmp/ ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("layer:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The SBOM in the index is the same as the one beside it, and describes the image that it names.
func TestIndexCarriesSBOM(t *testing.T) {
	out := packTest(t, t.TempDir())
	top, err := layout.ImageIndexFromPath(filepath.Join(out, "probe"))
	ok(t, err)
	manifest, err := top.IndexManifest()
	ok(t, err)
	ii, err := top.ImageIndex(manifest.Manifests[0].Digest)
	ok(t, err)
	images, err := ii.IndexManifest()
	ok(t, err)
	attestation := images.Manifests[3]
	image := images.Manifests[1].Digest
	if a := attestation.Annotations; a["vnd.docker.reference.digest"] != image.String() || a["vnd.docker.reference.type"] != "attestation-manifest" {
		t.Errorf("annotations of the attestation = %q", a)
	}
	img, err := ii.Image(attestation.Digest)
	ok(t, err)
	layers, err := img.Layers()
	ok(t, err)
	body, err := layers[0].Uncompressed()
	ok(t, err)
	defer body.Close()
	var s statement
	ok(t, json.NewDecoder(body).Decode(&s))
	if s.PredicateType != spdxPredicate || len(s.Subject) != 1 || s.Subject[0].Digest["sha256"] != image.Hex {
		t.Errorf("subject of the statement = %v, want the image", s.Subject)
	}
	beside, err := os.ReadFile(filepath.Join(out, "probe-arm64.spdx.json"))
	ok(t, err)
	var compact bytes.Buffer
	ok(t, json.Compact(&compact, beside))
	if !bytes.Equal(compact.Bytes(), s.Predicate) {
		t.Error("the SBOM of the attestation differs from the file")
	}
}
