package nodetemplate

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nodenetwork/template"
)

// book is what the API server told. It is values in memory.
type book struct {
	templates map[types.UID]v1alpha1.NodeNetworkTemplate
	listed    bool // all templates were told once

	node   types.UID // of the node's Node; empty: there is none, or it was not told yet
	labels map[string]string
	asked  bool // the Node was asked for

	trouble map[string]error // why something cannot be followed at present, by what it is
}

func newBook() book {
	return book{templates: map[types.UID]v1alpha1.NodeNetworkTemplate{}, trouble: map[string]error{}}
}

// setTemplates takes all there are.
func (b *book) setTemplates(list []*v1alpha1.NodeNetworkTemplate) {
	clear(b.templates)
	for _, t := range list {
		b.templates[t.UID] = *t
	}
	b.listed = true
}

// setNode takes the Node's labels. Those of a Node that is gone stay: its kubelet makes
// it again, or the machine goes too.
func (b *book) setNode(uid types.UID, labels map[string]string) {
	b.node, b.labels, b.asked = uid, maps.Clone(labels), true
}

// choice is the choice, and the error of template.Choose. It is not known (ok) before
// both lists were told.
func (b *book) choice() (c *template.Choice, ok bool, senseless error) {
	if !b.listed || b.node == "" {
		return nil, false, nil
	}
	c, senseless = template.Choose(b.labels, slices.Collect(maps.Values(b.templates)))
	return c, true, senseless
}

// missing is why there is no choice.
func (b *book) missing(nodeName string) error {
	for _, what := range slices.Sorted(maps.Keys(b.trouble)) {
		return fmt.Errorf("following %s: %w", what, explain(what, b.trouble[what]))
	}
	if b.asked && b.node == "" {
		return fmt.Errorf("there is no Node %s, whose labels NodeNetworkTemplates select by", nodeName)
	}
	return errNotTold
}
