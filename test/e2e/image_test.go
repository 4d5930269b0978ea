//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
)

// pauseImageName is the name of the sandbox image in containerd. The host does not exist, so that any attempt to pull
// the image fails.
const pauseImageName = "pause.invalid/berth/pause:e2e"

// pauseImage is the sandbox image as a tar archive in OCI layout.
var pauseImage = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "pause-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "pause")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, "./pause")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the pause program: %w\n%s", err, out)
	}
	data, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	return packImage(pauseImageName, "pause", data)
})

// blob describes content of an OCI layout (image-spec, "Content Descriptors").
type blob struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	data        []byte
}

func newBlob(mediaType string, data []byte) blob {
	sum := sha256.Sum256(data)
	return blob{
		MediaType: "application/vnd.oci.image." + mediaType,
		Digest:    "sha256:" + hex.EncodeToString(sum[:]), Size: len(data), data: data,
	}
}

// packImage creates an image of one layer with a static program as its entry point, in OCI layout (image-spec, "Image
// Layout").
func packImage(image, name string, program []byte) ([]byte, error) {
	layerTar, err := packTar(file{name, 0o755, program})
	if err != nil {
		return nil, err
	}
	layer := newBlob("layer.v1.tar", layerTar)
	config, err := jsonBlob("config.v1+json", map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/" + name}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layer.Digest}},
	})
	if err != nil {
		return nil, err
	}
	manifest, err := jsonBlob("manifest.v1+json", map[string]any{"schemaVersion": 2, "config": config, "layers": []blob{layer}})
	if err != nil {
		return nil, err
	}
	manifest.Annotations = map[string]string{"io.containerd.image.name": image}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []blob{manifest}})
	if err != nil {
		return nil, err
	}
	files := []file{{"oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)}, {"index.json", 0o644, index}}
	for _, b := range []blob{layer, config, manifest} {
		files = append(files, file{"blobs/sha256/" + b.Digest[len("sha256:"):], 0o644, b.data})
	}
	return packTar(files...)
}

func jsonBlob(mediaType string, v any) (blob, error) {
	data, err := json.Marshal(v)
	return newBlob(mediaType, data), err
}

type file struct {
	name string
	mode int64
	data []byte
}

func packTar(files ...file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data))}); err != nil {
			return nil, fmt.Errorf("pack %s: %w", f.name, err)
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, fmt.Errorf("pack %s: %w", f.name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	return out.Bytes(), nil
}
