package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/test/harness"
)

const version = "v1.2.3"

var digests = map[string]string{
	"berth-node": "sha256:" + strings.Repeat("a", 64), "berth-operator": "sha256:" + strings.Repeat("b", 64), "berth-egress": "sha256:" + strings.Repeat("c", 64),
}

// built writes the inputs of a release, with small files in place of programs, and returns flags for them.
func built(t *testing.T) (dir string, flags []string) {
	t.Helper()
	dir = t.TempDir()
	files := map[string]string{
		"LICENSE":      "Apache",
		"CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\n- Later.\n\n## [1.2.3] - 2026-12-01\n\n- New: [limits](docs/limits.md#pods). <!-- test: TestX -->\n\n## [1.2.2]\n\n- Old.\n",
	}
	list := ""
	for _, name := range []string{"berth-node", "berth-operator", "berth-egress"} {
		list += fmt.Sprintf("registry.example/net/%s:%s@%s\n", name, version, digests[name])
		files["images/"+name+"/index.json"] = "{}"
		files["images/"+name+"/blobs/sha256/"+strings.Repeat("1", 64)] = name
		files["images/"+name+"-amd64.tar"] = "of make images"
	}
	files["images/digests.txt"] = list
	for _, arch := range []string{"amd64", "arm64"} {
		for name := range digests {
			files["images/"+name+"-"+arch+".spdx.json"] = "{}"
		}
		for _, name := range []string{"berthd", "berthctl", "cni/portmap"} {
			files["programs/"+arch+"/"+name] = name + " for linux " + arch
		}
		files["programs/darwin-"+arch+"/berthctl"] = "berthctl for darwin " + arch
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		harness.OK(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)))
	}
	return dir, []string{"-version", version, "-tree", dir, "-programs", dir + "/programs", "-images", dir + "/images", "-out", dir + "/out/release"}
}

// TestRelease checks the parts of one release.
func TestRelease(t *testing.T) {
	dir, flags := built(t)
	old := filepath.Join(dir, "out/release/of-another-version")
	harness.OK(t, errors.Join(os.MkdirAll(filepath.Dir(old), 0o755), os.WriteFile(old, nil, 0o600)))
	harness.OK(t, run(flags, io.Discard))
	for name, check := range map[string]func(t *testing.T, dir string){
		"files": hasTheseFiles, "checksums": checksumsCoverAllFiles, "chart": chartRefersToImagesByDigest,
		"manifests": manifestsAreTheChart, "krew": krewVerifies, "programs": programsAreComplete,
	} {
		t.Run(name, func(t *testing.T) { check(t, dir) })
	}
}

func hasTheseFiles(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir + "/out/release")
	harness.OK(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	want := strings.Fields(`SHA256SUMS
		berth-1.2.3.tgz
		berth-egress-v1.2.3-linux-amd64.spdx.json berth-egress-v1.2.3-linux-arm64.spdx.json berth-egress-v1.2.3.oci.tar
		berth-node-v1.2.3-linux-amd64.spdx.json berth-node-v1.2.3-linux-arm64.spdx.json berth-node-v1.2.3.oci.tar
		berth-operator-v1.2.3-linux-amd64.spdx.json berth-operator-v1.2.3-linux-arm64.spdx.json berth-operator-v1.2.3.oci.tar
		berth-v1.2.3-linux-amd64.tar.gz berth-v1.2.3-linux-arm64.tar.gz
		crds.yaml dashboard.json iam-node.json iam-operator.json images.txt
		install-egress.yaml install-node.yaml install-operator.yaml install-pool.yaml install-port.yaml
		krew-berth.yaml kubectl-berth-v1.2.3-darwin-amd64.tar.gz kubectl-berth-v1.2.3-darwin-arm64.tar.gz kubectl-berth-v1.2.3-linux-amd64.tar.gz kubectl-berth-v1.2.3-linux-arm64.tar.gz
		release-notes.md rules-egress.yaml rules-policies.yaml rules-ports.yaml rules.yaml`)
	if d := cmp.Diff(want, names); d != "" {
		t.Errorf("files of the release (-want +got):\n%s", d)
	}
}

// The same inputs have the same release, whatever the times of the files and the folder.
func TestReleaseIsReproducible(t *testing.T) {
	dir, flags := built(t)
	harness.OK(t, run(flags, io.Discard))
	other := t.TempDir() + "/renamed"
	harness.OK(t, os.CopyFS(other, os.DirFS(dir)))
	harness.OK(t, filepath.WalkDir(other, func(path string, _ os.DirEntry, _ error) error {
		return os.Chtimes(path, time.Now(), time.Unix(1e9, 0))
	}))
	for i := range flags {
		flags[i] = strings.ReplaceAll(flags[i], dir, other)
	}
	harness.OK(t, run(flags, io.Discard))
	if d := cmp.Diff(sums(t, dir), sums(t, other)); d != "" {
		t.Errorf("checksums of two builds (-first +second):\n%s", d)
	}
}

func sums(t *testing.T, dir string) string { return string(released(t, dir, "SHA256SUMS")) }

func released(t *testing.T, dir, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "out/release", name))
	harness.OK(t, err)
	return data
}

func checksumsCoverAllFiles(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir + "/out/release")
	harness.OK(t, err)
	want := ""
	for _, e := range entries {
		if e.Name() != "SHA256SUMS" {
			want += sum(released(t, dir, e.Name())) + "  " + e.Name() + "\n"
		}
	}
	if d := cmp.Diff(want, string(released(t, dir, "SHA256SUMS"))); d != "" {
		t.Errorf("SHA256SUMS (-want +got):\n%s", d)
	}
}

// The chart package has the versions, and refers to the images by digest in its values and their documentation.
func chartRefersToImagesByDigest(t *testing.T, dir string) {
	t.Helper()
	p, err := deploy.ReadPackage(dir + "/out/release/berth-1.2.3.tgz")
	harness.OK(t, err)
	objects, err := p.Render(deploy.Release{Values: map[string]any{"mode": deploy.OperatorMode, "clusterName": "c", "egress": map[string]any{"enabled": true}}})
	harness.OK(t, err)
	daemons, err := deploy.Get[appsv1.DaemonSet](objects, "DaemonSet", "berthd")
	harness.OK(t, err)
	operators, err := deploy.Get[appsv1.Deployment](objects, "Deployment", "berth-operator")
	harness.OK(t, err)
	got := []string{daemons.Spec.Template.Spec.Containers[0].Image, operators.Spec.Template.Spec.Containers[0].Image}
	for _, e := range operators.Spec.Template.Spec.Containers[0].Env {
		if e.Name == "BERTH_EGRESS_IMAGE" {
			got = append(got, e.Value)
		}
	}
	got = append(got, p.Version, daemons.Labels["app.kubernetes.io/version"])
	want := []string{"registry.example/net/berth-node@" + digests["berth-node"], "registry.example/net/berth-operator@" + digests["berth-operator"], "registry.example/net/berth-egress@" + digests["berth-egress"], "1.2.3", version}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("images and versions (-want +got):\n%s", d)
	}
	readme := unpack(t, released(t, dir, "berth-1.2.3.tgz"))["berth/README.md"]
	if !strings.Contains(readme, "| `daemon.image.digest` | `"+digests["berth-node"]+"` |") {
		t.Error("the chart's README lacks the digest of the node image")
	}
}

// A manifest has the objects of the chart. The name of the cluster has to be replaced.
func manifestsAreTheChart(t *testing.T, dir string) {
	t.Helper()
	p, err := deploy.ReadPackage(dir + "/out/release/berth-1.2.3.tgz")
	harness.OK(t, err)
	for _, m := range manifests {
		text := strings.ReplaceAll(string(released(t, dir, "install-"+m.mode+".yaml")), placeholder, "prod")
		want, err := p.Render(deploy.InMode(m.mode, map[bool]string{true: "prod"}[m.named]))
		harness.OK(t, err)
		documents := strings.Split(text, "\n---\n")
		if len(documents) != len(want)+1 { // the first is the comment
			t.Fatalf("manifest of mode %s has %d objects, want %d", m.mode, len(documents)-1, len(want))
		}
		for i, o := range want {
			labels := o.GetLabels()
			delete(labels, "app.kubernetes.io/managed-by")
			o.SetLabels(labels)
			var got map[string]any
			harness.OK(t, yaml.Unmarshal([]byte(documents[i+1]), &got))
			wanted, err := yaml.Marshal(o.Object)
			harness.OK(t, err)
			if d := cmp.Diff(string(wanted), strings.TrimSuffix(documents[i+1], "\n")+"\n"); d != "" {
				t.Errorf("mode %s, %s %s (-chart +manifest):\n%s", m.mode, o.GetKind(), o.GetName(), d)
			}
		}
		if m.named != strings.Contains(text, "sed s/prod/my-cluster/") {
			t.Errorf("the comment of mode %s about the name of the cluster is wrong:\n%.300s", m.mode, text)
		}
	}
}

// krew verifies what it downloads, and links kubectl-berth to the program.
func krewVerifies(t *testing.T, dir string) {
	t.Helper()
	var k krewPlugin
	harness.OK(t, yaml.UnmarshalStrict(released(t, dir, "krew-berth.yaml"), &k))
	if k.Metadata["name"] != "berth" || k.Spec.Version != version || len(k.Spec.Platforms) != 4 {
		t.Errorf("krew manifest = %+v", k)
	}
	for _, p := range k.Spec.Platforms {
		system, arch := p.Selector.MatchLabels["os"], p.Selector.MatchLabels["arch"]
		name := "kubectl-berth-v1.2.3-" + system + "-" + arch + ".tar.gz"
		data := released(t, dir, name)
		if p.URI != "https://github.com/berthnet/berth/releases/download/v1.2.3/"+name || p.SHA256 != sum(data) {
			t.Errorf("platform = %+v, want %s with checksum %s", p, name, sum(data))
		}
		want := map[string]string{p.Bin: "berthctl for " + system + " " + arch, "LICENSE": "Apache"}
		if d := cmp.Diff(want, unpack(t, data)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

func programsAreComplete(t *testing.T, dir string) {
	t.Helper()
	want := map[string]string{"berthctl": "berthctl for linux arm64", "berthd": "berthd for linux arm64", "cni/portmap": "cni/portmap for linux arm64", "LICENSE": "Apache"}
	if d := cmp.Diff(want, unpack(t, released(t, dir, "berth-v1.2.3-linux-arm64.tar.gz"))); d != "" {
		t.Errorf("programs for arm64 (-want +got):\n%s", d)
	}
}

// unpack returns the files of a compressed archive.
func unpack(t *testing.T, data []byte) map[string]string {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(data))
	harness.OK(t, err)
	files := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		harness.OK(t, err)
		text, err := io.ReadAll(r)
		harness.OK(t, err)
		files[h.Name] = string(text)
		if h.ModTime.Unix() != 0 {
			t.Errorf("time of %s = %v, want none of the build", h.Name, h.ModTime)
		}
		if program := h.Name != "LICENSE" && !strings.HasPrefix(h.Name, "berth/"); program != (h.Mode == 0o755) {
			t.Errorf("mode of %s = %o", h.Name, h.Mode)
		}
	}
}

func TestReleaseNotes(t *testing.T) {
	changelog := "# Changelog\n\n## [Unreleased]\n\n- Later.\n\n## [1.2.3] - 2026-12-01\n\n- New: [limits](docs/limits.md#pods), [here](#a), [there](https://a.example/b). <!-- test: TestX -->\n\n## [1.2.2]\n\n- Old.\n\n## [1.2.1]\n\n"
	for _, tt := range []struct{ version, want, err string }{
		{"v1.2.3", "- New: [limits](https://github.com/berthnet/berth/blob/v1.2.3/docs/limits.md#pods), [here](#a), [there](https://a.example/b).\n", ""},
		{"v1.2.3-rc.1", "- New: [limits](https://github.com/berthnet/berth/blob/v1.2.3-rc.1/docs/limits.md#pods), [here](#a), [there](https://a.example/b).\n", ""},
		{"v1.2.2", "- Old.\n", ""},
		{"v1.2.1", "", "the section [1.2.1] is empty"},
		{"v1.3.0", "", "CHANGELOG.md has no section [1.3.0]"},
	} {
		got, err := notes(changelog, tt.version)
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("notes of %s = %q, %v, want %q, %s", tt.version, got, err, tt.want, tt.err)
		}
	}
}

// An incomplete build is no release, and leaves the former one in place.
func TestIncompleteBuildIsRejected(t *testing.T) {
	for _, tt := range []struct {
		name   string
		damage func(dir string) error
		want   string
	}{
		{"no SBOM", func(dir string) error { return os.Remove(dir + "/images/berth-egress-arm64.spdx.json") }, "berth-egress-arm64.spdx.json"},
		{"no layout", func(dir string) error { return os.RemoveAll(dir + "/images/berth-node") }, "images/berth-node"},
		{"no program", func(dir string) error { return os.Remove(dir + "/programs/arm64/berthctl") }, "programs for linux on arm64: no berthctl in"},
		{"no program for laptops", func(dir string) error { return os.RemoveAll(dir + "/programs/darwin-amd64") }, "programs for darwin on amd64"},
		{"images of another version", func(dir string) error {
			return os.WriteFile(dir+"/images/digests.txt", []byte("registry.example/berth-node:v1.2.2@sha256:0\n"), 0o600)
		}, "expected NAME:v1.2.3@sha256:"},
		{"an unknown image", func(dir string) error {
			return errors.Join(os.WriteFile(dir+"/images/digests.txt", []byte("registry.example/other:v1.2.3@sha256:0\n"), 0o600),
				os.Rename(dir+"/images/berth-node", dir+"/images/other"), os.Rename(dir+"/images/berth-node-amd64.spdx.json", dir+"/images/other-amd64.spdx.json"),
				os.Rename(dir+"/images/berth-node-arm64.spdx.json", dir+"/images/other-arm64.spdx.json"))
		}, "values.yaml has 0 matches"},
		{"no section in the changelog", func(dir string) error { return os.WriteFile(dir+"/CHANGELOG.md", []byte("# Changelog\n"), 0o600) }, "no section [1.2.3]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, flags := built(t)
			const before = "checksums of the former release"
			harness.OK(t, errors.Join(os.MkdirAll(dir+"/out/release", 0o755), os.WriteFile(dir+"/out/release/SHA256SUMS", []byte(before), 0o600)))
			harness.OK(t, tt.damage(dir))
			if err := run(flags, io.Discard); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error = %v, want one with %q", err, tt.want)
			}
			if sums(t, dir) != before {
				t.Error("the former release has changed")
			}
		})
	}
	_, flags := built(t)
	for _, bad := range []string{"", "1.2.3", "v1.2", "dev"} {
		if err := run(append(slices.Clone(flags), "-version", bad), io.Discard); err == nil || !strings.Contains(err.Error(), "expected a version such as v1.2.3") {
			t.Errorf("version %q: error = %v", bad, err)
		}
	}
}

// `make chart` packages a checkout of any version, without digests, beside other files.
func TestChartOfACheckout(t *testing.T) {
	dir := t.TempDir()
	for given, file := range map[string]string{"v1.2.3": "berth-1.2.3.tgz", "v1.2.3-4-gabc1234-dirty": "berth-1.2.3-4-gabc1234-dirty.tgz", "1234567e5": "berth-0.0.0-g1234567e5.tgz"} {
		harness.OK(t, run([]string{"-chart", "-version", given, "-out", dir}, io.Discard))
		p, err := deploy.ReadPackage(filepath.Join(dir, file))
		harness.OK(t, err)
		objects, err := p.Render(deploy.InMode(deploy.NodeMode, "c"))
		harness.OK(t, err)
		daemons, err := deploy.Get[appsv1.DaemonSet](objects, "DaemonSet", "berthd")
		harness.OK(t, err)
		if image := daemons.Spec.Template.Spec.Containers[0].Image; image != "berth-node:"+given {
			t.Errorf("image of version %s = %s", given, image)
		}
	}
}
