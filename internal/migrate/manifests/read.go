package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/internal/yamlalias"
)

// longest bounds a file: the objects of some thousand nodes.
const longest = 256 << 20

// Read reads the manifests of a file, YAML documents or JSON, Lists included. Errors name the file and the position of the
// document in it.
func Read(source string, r io.Reader) (out []Object, err error) {
	text, err := io.ReadAll(io.LimitReader(r, longest+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", source, err)
	}
	if len(text) > longest {
		return nil, fmt.Errorf("%s is longer than %d bytes", source, longest)
	}
	var errs []error
	for i, doc := range bytes.Split(append([]byte("\n"), text...), []byte("\n---")) {
		objects, err := readOne(source, doc)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s, document %d: %w", source, i+1, err))
		}
		out = append(out, objects...)
	}
	return out, errors.Join(errs...)
}

func readOne(source string, doc []byte) ([]Object, error) {
	if json.Valid(doc) {
		return split(source, doc)
	}
	aliases, err := yamlalias.In(doc)
	if err != nil {
		return nil, err
	}
	if aliases {
		return nil, errors.New("it has YAML aliases: write them out")
	}
	raw, err := yaml.YAMLToJSON(doc)
	if err != nil {
		return nil, err
	}
	return split(source, raw)
}

// split returns an object, or those of a List.
func split(source string, raw []byte) ([]Object, error) {
	var head struct {
		metav1.TypeMeta `json:",inline"`
		Items           []json.RawMessage `json:"items"`
	}
	if bytes.Equal(bytes.TrimSpace(raw), []byte("null")) { // a document without content
		return nil, nil
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, fmt.Errorf("expected an object with apiVersion and kind: %w", err)
	}
	if head.Kind == "" || head.APIVersion == "" {
		return nil, errors.New("expected an object with apiVersion and kind")
	}
	if len(head.Kind) < 4 || head.Kind[len(head.Kind)-4:] != "List" {
		o := Object{Source: source, raw: raw}
		return []Object{o}, json.Unmarshal(raw, &o)
	}
	var out []Object
	for i, item := range head.Items {
		objects, err := split(source, item)
		if err != nil {
			return nil, fmt.Errorf("items[%d]: %w", i, err)
		}
		out = append(out, objects...)
	}
	return out, nil
}
