// Package yamlalias finds aliases in untrusted YAML.
package yamlalias

import (
	"slices"

	"go.yaml.in/yaml/v3"
)

// In reports whether a document has aliases (*NAME). A decoder expands them, and nested aliases expand a few kilobytes to
// gigabytes, so documents with aliases must not be decoded. It returns an error if the text is not YAML.
func In(document []byte) (bool, error) {
	var root yaml.Node // a yaml.Node keeps each alias as one node
	if err := yaml.Unmarshal(document, &root); err != nil {
		return false, err
	}
	var has func(*yaml.Node) bool
	has = func(n *yaml.Node) bool { return n.Kind == yaml.AliasNode || slices.ContainsFunc(n.Content, has) }
	return has(&root), nil
}
