package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"sigs.k8s.io/yaml"
)

// plugin is the program of `kubectl berth`; kubectl calls it by the name kubectl-berth.
const plugin = "berthctl"

// addPrograms adds an archive of all programs for each architecture, and one of the kubectl plugin for each architecture and
// operating system, with the manifest by which krew installs it.
func (r release) addPrograms() error {
	license, err := os.ReadFile(filepath.Join(r.tree, "LICENSE"))
	if err != nil {
		return fmt.Errorf("read the license: %w", err)
	}
	text := file{"LICENSE", 0o644, license}
	var platforms []platform
	for _, arch := range r.archs {
		programs, err := r.programsOf("linux", arch)
		if err != nil {
			return err
		}
		all, err := compress(append(programs, text))
		if err != nil {
			return err
		}
		if err := r.add(fmt.Sprintf("berth-%s-linux-%s.tar.gz", r.version, arch), all); err != nil {
			return err
		}
		for _, system := range append([]string{"linux"}, r.clients...) {
			p, err := r.addPlugin(system, arch, text)
			if err != nil {
				return err
			}
			platforms = append(platforms, p)
		}
	}
	manifest, err := yaml.Marshal(krewManifest(r.version, platforms))
	if err != nil {
		return fmt.Errorf("write the krew manifest: %w", err)
	}
	return r.add("krew-berth.yaml", manifest)
}

// addPlugin adds the archive of the kubectl plugin for an operating system and architecture.
func (r release) addPlugin(system, arch string, license file) (platform, error) {
	programs, err := r.programsOf(system, arch)
	if err != nil {
		return platform{}, err
	}
	i := slices.IndexFunc(programs, func(f file) bool { return f.name == plugin }) // programsOf requires it
	archive, err := compress([]file{programs[i], license})
	if err != nil {
		return platform{}, err
	}
	name := fmt.Sprintf("kubectl-berth-%s-%s-%s.tar.gz", r.version, system, arch)
	return platform{
		Selector: selector{MatchLabels: map[string]string{"os": system, "arch": arch}},
		URI:      repository + "/releases/download/" + r.version + "/" + name,
		SHA256:   sum(archive), Bin: plugin,
	}, r.add(name, archive)
}

// programsOf returns the programs for an operating system and architecture, of which one is the kubectl plugin.
func (r release) programsOf(system, arch string) ([]file, error) {
	folder := filepath.Join(r.programs, arch)
	if system != "linux" {
		folder = filepath.Join(r.programs, system+"-"+arch)
	}
	programs, err := read(os.DirFS(folder), 0o755)
	if err != nil {
		return nil, fmt.Errorf("programs for %s on %s: %w", system, arch, err)
	}
	if !slices.ContainsFunc(programs, func(f file) bool { return f.name == plugin }) {
		return nil, fmt.Errorf("programs for %s on %s: no %s in %s", system, arch, plugin, folder)
	}
	return programs, nil
}

// The parts of a krew manifest (https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest).
type (
	krewPlugin struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Metadata   map[string]string `json:"metadata"`
		Spec       krewSpec          `json:"spec"`
	}
	krewSpec struct {
		Version          string     `json:"version"`
		Homepage         string     `json:"homepage"`
		ShortDescription string     `json:"shortDescription"`
		Description      string     `json:"description"`
		Platforms        []platform `json:"platforms"`
	}
	platform struct {
		Selector selector `json:"selector"`
		URI      string   `json:"uri"`
		SHA256   string   `json:"sha256"`
		Bin      string   `json:"bin"`
	}
	selector struct {
		MatchLabels map[string]string `json:"matchLabels"`
	}
)

func krewManifest(version string, platforms []platform) krewPlugin {
	return krewPlugin{
		APIVersion: "krew.googlecontainertools.github.com/v1alpha2", Kind: "Plugin", Metadata: map[string]string{"name": "berth"},
		Spec: krewSpec{
			Version: version, Homepage: repository, ShortDescription: "Show and diagnose the Berth pod network", Platforms: platforms,
			Description: "Shows the addresses, ENIs and address pools of a cluster whose pod network is Berth,\n" +
				"explains why a pod has no address or no connection, traces network policies, collects\n" +
				"support bundles, and moves a running cluster from another network to Berth.\n",
		},
	}
}
