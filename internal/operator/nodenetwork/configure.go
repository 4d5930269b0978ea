package nodenetwork

import (
	"context"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/nodenetwork"
	"github.com/berthnet/berth/internal/nodenetwork/template"
)

// configuration is what the fleet was told of a node.
type configuration struct {
	settings eni.Settings
	set      bool             // the fleet has settings
	chosen   *template.Choice // the template that is part of them; nil: none is
	eni      v1alpha1.ENISpec // spec.eni with what it sets
	seed     eni.Inventory    // what was published before this process; until the fleet has it
	err      error            // of the newest spec or template; settings are older then
}

// configure tells the fleet what the object, and a template that selects its Node k, ask
// for, if that changed. What makes no sense changes nothing but the node's conditions,
// nor does any while the instance is not proved to be the Node's.
func (c *Controller) configure(ctx context.Context, n *node, k *corev1.Node) error {
	chosen, err := c.choose(ctx, n, k)
	if err != nil {
		return err
	}
	n.mu.Lock()
	next := configuration{chosen: chosen, eni: n.obj.Spec.ENI}
	spec := n.obj.Spec
	if chosen != nil {
		next.eni = *template.Merge(&spec.ENI, &chosen.ENI)
		spec.ENI = next.eni
	}
	next.settings, err = nodenetwork.Settings(&spec)
	next.settings.DrainOutdated = chosen != nil && chosen.Drain
	if err == nil && n.fleet.inv != nil {
		err = nodenetwork.BeyondType(next.settings, n.fleet.inv)
	}
	if err != nil && chosen != nil {
		err = fmt.Errorf("with %s: %w", chosen.Name, err)
	}
	known, same := n.config.set, n.config.set && reflect.DeepEqual(next.settings, n.config.settings)
	n.config.err = err
	if same && err == nil {
		n.config.chosen, n.config.eni = next.chosen, next.eni
	}
	seed, refused := n.config.seed, n.eligibility.refused != (refusal{})
	n.mu.Unlock()
	if same || err != nil || refused || !known && c.heldForRecreation(n) {
		return nil
	}
	next.err = c.fleet.Set(n.name, n.instanceID, next.settings, seed, n)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.config.err = next.err; next.err == nil {
		next.set = true
		n.config = next
	}
	return nil
}

// choose is the template that selects a Node. Without a Node, whose labels are not known
// then, it is the one that counted before.
func (c *Controller) choose(ctx context.Context, n *node, k *corev1.Node) (*template.Choice, error) {
	if k == nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.config.chosen, nil
	}
	all := &v1alpha1.NodeNetworkTemplateList{}
	if err := c.client.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("read NodeNetworkTemplates from the cache: %w", err)
	}
	chosen, err := template.Choose(k.Labels, all.Items)
	if err != nil { // the API server refuses such, unless its validation is off
		c.o.Logger.Warn("a template selects no node", "node", n.name, "error", err)
	}
	return chosen, nil
}

// everyNode are the objects that a template may be for. There are few templates, and they
// seldom change.
func (c *Controller) everyNode(context.Context, client.Object) (all []reconcile.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.nodes {
		all = append(all, reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
	}
	return all
}

// describe notes in an object's status whose settings count. n.mu is held.
func (g *configuration) describe(s *v1alpha1.ENIStatus) {
	if g.set && g.chosen != nil {
		s.Template, s.Settings = g.chosen.Name, &g.eni
	}
}
