// Package yamlalias finds aliases in YAML that others wrote.
package yamlalias

import (
	"slices"

	"go.yaml.in/yaml/v3"
)

// In reports whether a document has aliases (*NAME). To a decoder each is what it stands for, and aliases of aliases make
// gigabytes of a few kilobytes: documents with aliases must not be decoded. The error is of text that is no YAML.
func In(document []byte) (bool, error) {
	var root yaml.Node // has each alias as one node
	if err := yaml.Unmarshal(document, &root); err != nil {
		return false, err
	}
	var has func(*yaml.Node) bool
	has = func(n *yaml.Node) bool { return n.Kind == yaml.AliasNode || slices.ContainsFunc(n.Content, has) }
	return has(&root), nil
}
