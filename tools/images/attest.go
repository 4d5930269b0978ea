package main

import (
	"encoding/json"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// spdxPredicate is the predicate type of an in-toto statement that carries an SPDX document.
const spdxPredicate = "https://spdx.dev/Document"

// statement is an in-toto statement
// (https://github.com/in-toto/attestation/blob/main/spec/v0.1.0/statement.md).
type statement struct {
	Type          string          `json:"_type"`
	PredicateType string          `json:"predicateType"`
	Subject       []subject       `json:"subject"`
	Predicate     json.RawMessage `json:"predicate"`
}

type subject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

// attest puts an image's SBOM into an attestation manifest in BuildKit's format
// (https://docs.docker.com/build/metadata/attestations/attestation-storage). The manifest is an entry of the index for
// no platform, so it is copied with the index, and no runtime treats it as an image to run.
func attest(b built) (mutate.IndexAddendum, error) {
	digest, err := b.image.Digest()
	if err != nil {
		return mutate.IndexAddendum{}, fmt.Errorf("digest of the image: %w", err)
	}
	body, err := json.Marshal(statement{
		Type: "https://in-toto.io/Statement/v0.1", PredicateType: spdxPredicate,
		Subject:   []subject{{Name: "_", Digest: map[string]string{digest.Algorithm: digest.Hex}}},
		Predicate: b.sbom,
	})
	if err != nil {
		return mutate.IndexAddendum{}, fmt.Errorf("write the attestation: %w", err)
	}
	unknown := v1.Platform{OS: "unknown", Architecture: "unknown"}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	config, err := mutate.ConfigFile(base, &v1.ConfigFile{
		OS: unknown.OS, Architecture: unknown.Architecture, RootFS: v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return mutate.IndexAddendum{}, fmt.Errorf("make the attestation: %w", err)
	}
	manifest, err := mutate.Append(config, mutate.Addendum{
		Layer:       static.NewLayer(body, "application/vnd.in-toto+json"),
		Annotations: map[string]string{"in-toto.io/predicate-type": spdxPredicate},
	})
	if err != nil {
		return mutate.IndexAddendum{}, fmt.Errorf("make the attestation: %w", err)
	}
	return mutate.IndexAddendum{Add: manifest, Descriptor: v1.Descriptor{
		Platform: &unknown,
		Annotations: map[string]string{
			"vnd.docker.reference.digest": digest.String(),
			"vnd.docker.reference.type":   "attestation-manifest",
		},
	}}, nil
}
