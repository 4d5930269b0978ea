package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/deploy"
)

// release is a release in memory.
type release struct {
	version                string
	archs                  []string
	clients                []string          // operating systems of the kubectl plugin besides linux
	programs, images, tree string            // folders of its parts
	files                  map[string][]byte // by name; a release is one flat folder
}

// collect makes all files.
func (r release) collect() error {
	images, err := r.addImages()
	if err != nil {
		return err
	}
	p, err := deploy.NewPackage(r.version, images)
	if err != nil {
		return err
	}
	for _, add := range []func() error{
		func() error { return r.addChart(p) }, func() error { return r.addManifests(p) }, r.addSources, r.addPrograms, r.addNotes,
	} {
		if err := add(); err != nil {
			return err
		}
	}
	var sums bytes.Buffer
	for _, name := range r.names() {
		fmt.Fprintf(&sums, "%s  %s\n", sum(r.files[name]), name)
	}
	return r.add("SHA256SUMS", sums.Bytes())
}

func sum(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }

func (r release) names() []string { return slices.Sorted(maps.Keys(r.files)) }

// add adds a file.
func (r release) add(name string, data []byte) error {
	if _, there := r.files[name]; there {
		return fmt.Errorf("the release has two files called %s", name)
	}
	r.files[name] = data
	return nil
}

// addImages adds the images as OCI layouts in tar archives, their SBOMs, and images.txt, which lists them by digest.
func (r release) addImages() (images []deploy.Image, err error) {
	digests, err := os.ReadFile(filepath.Join(r.images, "digests.txt"))
	if err != nil {
		return nil, fmt.Errorf("list the images: %w", err)
	}
	for line := range strings.Lines(string(digests)) {
		name, digest, _ := strings.Cut(strings.TrimSpace(line), "@")
		image, ok := strings.CutSuffix(name, ":"+r.version)
		if !ok || !strings.HasPrefix(digest, "sha256:") {
			return nil, fmt.Errorf("digests.txt has %q, expected NAME:%s@sha256:DIGEST", strings.TrimSpace(line), r.version)
		}
		images = append(images, deploy.Image{Repository: image, Digest: digest})
		base := path.Base(image)
		if err := r.addImage(base); err != nil {
			return nil, fmt.Errorf("image %s: %w", image, err)
		}
	}
	return images, r.add("images.txt", digests)
}

func (r release) addImage(base string) error {
	folder := filepath.Join(r.images, base)
	layout, err := read(os.DirFS(folder), 0o644)
	if err != nil {
		return fmt.Errorf("layout %s: %w", folder, err)
	}
	var archive bytes.Buffer
	if err := pack(&archive, layout); err != nil {
		return err
	}
	errs := []error{r.add(fmt.Sprintf("%s-%s.oci.tar", base, r.version), archive.Bytes())}
	for _, arch := range r.archs {
		bom, err := os.ReadFile(folder + "-" + arch + ".spdx.json")
		errs = append(errs, err, r.add(fmt.Sprintf("%s-%s-linux-%s.spdx.json", base, r.version, arch), bom))
	}
	return errors.Join(errs...)
}

func (r release) addChart(p deploy.Package) error {
	var data bytes.Buffer
	if err := p.Write(&data); err != nil {
		return err
	}
	return r.add(p.File(), data.Bytes())
}

// Words that stand for the name of the cluster, in install manifests and in IAM policies. Manifests contain
// BERTH_CLUSTER_NAME otherwise. The programs reject the first as a name.
const (
	placeholder    = "MY_CLUSTER"
	iamPlaceholder = "CLUSTER_NAME"
)

// manifests describe the install manifest of each mode, and whether it contains the cluster's name.
var manifests = []struct {
	mode, about string
	named       bool
}{
	{deploy.NodeMode, "ENIs, managed by berthd on each node", true},
	{deploy.OperatorMode, "ENIs, managed by berth-operator for all nodes", true},
	{deploy.PoolMode, "blocks of address pools", false},
	{deploy.PortMode, "ports of VPCs", true},
	{deploy.EgressMode, "egress gateways beside another network", false},
}

// addManifests adds install-MODE.yaml for each mode: what the chart installs with its default values.
func (r release) addManifests(p deploy.Package) error {
	for _, m := range manifests {
		text := fmt.Sprintf("# Berth %s in %s mode (%s), as the chart installs it with its default values.\n", r.version, m.mode, m.about)
		values := map[string]any{"mode": m.mode}
		if m.named {
			values["clusterName"] = placeholder
			text += "# Replace " + placeholder + " by the name of the cluster: sed s/" + placeholder + "/my-cluster/\n"
		}
		objects, err := p.Render(deploy.Release{Values: values})
		if err != nil {
			return fmt.Errorf("install manifest of mode %s: %w", m.mode, err)
		}
		for _, o := range objects {
			labels := o.GetLabels()
			delete(labels, "app.kubernetes.io/managed-by") // not by Helm
			o.SetLabels(labels)
			data, err := yaml.Marshal(o.Object)
			if err != nil {
				return fmt.Errorf("install manifest of mode %s: %w", m.mode, err)
			}
			text += "---\n" + string(data)
		}
		if err := r.add("install-"+m.mode+".yaml", []byte(text)); err != nil {
			return err
		}
	}
	return nil
}

// addSources adds files of the tree: the CRDs in one file, the IAM policies, the dashboard and the rules.
func (r release) addSources() error {
	crds, err := concatenate(deploy.CRDs())
	if err != nil {
		return fmt.Errorf("CRDs: %w", err)
	}
	errs := []error{
		r.add("crds.yaml", crds),
		r.add("iam-node.json", []byte(deploy.NodePolicy(iamPlaceholder))),
		r.add("iam-operator.json", []byte(deploy.OperatorPolicy(iamPlaceholder))),
	}
	const monitoring = "files/monitoring"
	entries, err := fs.ReadDir(deploy.Chart(), monitoring)
	errs = append(errs, err)
	for _, e := range entries {
		data, err := fs.ReadFile(deploy.Chart(), path.Join(monitoring, e.Name()))
		errs = append(errs, err, r.add(e.Name(), data))
	}
	return errors.Join(errs...)
}

// concatenate joins the YAML documents of a folder.
func concatenate(from fs.FS) ([]byte, error) {
	names, err := fs.Glob(from, "*.yaml")
	if err != nil {
		return nil, err
	}
	var out []byte
	for _, name := range names {
		data, err := fs.ReadFile(from, name)
		if err != nil {
			return nil, err
		}
		if !bytes.HasPrefix(data, []byte("---\n")) {
			out = append(out, "---\n"...)
		}
		out = append(out, data...)
	}
	return out, nil
}

// write writes the files to a folder, in place of its content.
func (r release) write(to string) error {
	part := to + ".part"
	if err := errors.Join(os.RemoveAll(part), os.MkdirAll(part, 0o755)); err != nil {
		return err
	}
	for name, data := range r.files {
		if err := os.WriteFile(filepath.Join(part, name), data, 0o644); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	return os.Rename(part, to)
}
