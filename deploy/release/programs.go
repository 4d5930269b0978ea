package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"sigs.k8s.io/yaml"
)

// plugin is the program of `kubectl berth`; kubectl calls it by the name kubectl-berth.
const plugin = "berthctl"

// addPrograms adds an archive of all programs for each architecture, and one of the kubectl plugin, with the manifest by
// which krew installs it.
func (r release) addPrograms() error {
	license, err := os.ReadFile(filepath.Join(r.tree, "LICENSE"))
	if err != nil {
		return fmt.Errorf("read the license: %w", err)
	}
	var platforms []platform
	for _, arch := range r.archs {
		programs, err := read(os.DirFS(filepath.Join(r.programs, arch)), 0o755)
		if err != nil {
			return fmt.Errorf("programs for %s: %w", arch, err)
		}
		i := slices.IndexFunc(programs, func(f file) bool { return f.name == plugin })
		if i < 0 {
			return fmt.Errorf("programs for %s: no %s in %s", arch, plugin, filepath.Join(r.programs, arch))
		}
		text := file{"LICENSE", 0o644, license}
		all, err := compress(append(programs, text))
		if err != nil {
			return err
		}
		alone, err := compress([]file{programs[i], text})
		if err != nil {
			return err
		}
		name := fmt.Sprintf("kubectl-berth-%s-linux-%s.tar.gz", r.version, arch)
		if err := errors.Join(r.add(fmt.Sprintf("berth-%s-linux-%s.tar.gz", r.version, arch), all), r.add(name, alone)); err != nil {
			return err
		}
		platforms = append(platforms, platform{
			Selector: selector{MatchLabels: map[string]string{"os": "linux", "arch": arch}},
			URI:      repository + "/releases/download/" + r.version + "/" + name,
			SHA256:   sum(alone), Bin: plugin,
		})
	}
	manifest, err := yaml.Marshal(krewManifest(r.version, platforms))
	if err != nil {
		return fmt.Errorf("write the krew manifest: %w", err)
	}
	return r.add("krew-berth.yaml", manifest)
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
