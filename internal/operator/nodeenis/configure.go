package nodeenis

import (
	"context"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/eni"
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
	sensible bool             // the settings can be had
}

// configure tells the fleet what the object, and a template that selects its Node k, ask
// for, if that changed. What makes no sense changes nothing but the node's conditions,
// nor does any while the instance is not proved to be the Node's.
func (c *Controller) configure(ctx context.Context, n *node, k *corev1.Node) error {
	chosen, err := c.choose(ctx, n.name, k)
	if err != nil {
		return err
	}
	n.mu.Lock()
	next := n.asked(chosen)
	known, same := n.config.set, n.config.set && reflect.DeepEqual(next.settings, n.config.settings)
	n.config.err = next.err
	if next.err != nil && !known {
		if before, ok := n.counted(); ok {
			before.err, next = next.err, before
		}
	}
	if same && next.err == nil {
		n.config.chosen, n.config.eni = next.chosen, next.eni
	}
	seed, refused := n.config.seed, n.eligibility.refused != (refusal{})
	n.mu.Unlock()
	if same || !next.sensible || refused || !known && c.heldForRecreation(n) {
		return nil
	}
	err = c.fleet.Set(n.name, n.instanceID, next.settings, seed, n)
	n.mu.Lock()
	defer n.mu.Unlock()
	if err != nil {
		n.config.err = err
		return nil
	}
	next.set = true
	n.config = next
	return nil
}

// asked is what the object and a template ask for. n.mu is held.
func (n *node) asked(chosen *template.Choice) configuration {
	next := configuration{chosen: chosen, eni: n.obj.Spec.ENI}
	if chosen != nil {
		next.eni = *template.Merge(&n.obj.Spec.ENI, &chosen.ENI)
	}
	if next.read(n.obj); next.err == nil {
		next.err = n.fits(next.settings)
		next.sensible = next.err == nil
	}
	if next.err != nil && chosen != nil {
		next.err = fmt.Errorf("with %s: %w", chosen.Name, next.err)
	}
	return next
}

// counted is what counted with a template when the object was last written, for an
// operator that begins while the template makes no sense. n.mu is held.
func (n *node) counted() (before configuration, ok bool) {
	is := &n.obj.Status.ENI
	if is.Settings == nil {
		return before, false
	}
	before = configuration{chosen: &template.Choice{Name: is.Template}, eni: *is.Settings}
	before.read(n.obj)
	return before, before.sensible
}

// read makes settings of spec.eni.
func (g *configuration) read(o *v1alpha1.NodeNetwork) {
	spec := v1alpha1.NodeNetworkSpec{InstanceID: o.Spec.InstanceID, InstanceType: o.Spec.InstanceType, ENI: g.eni}
	g.settings, g.err = nodenetwork.Settings(&spec)
	g.settings.DrainOutdated = g.chosen != nil && g.chosen.Drain
	g.sensible = g.err == nil
}

// fits tells why the instance cannot have settings; nil: it can, as far as is known. What
// the object says of the instance may be old: it is heeded only where other settings can
// go on meanwhile, with which the fleet asks EC2. n.mu is held.
func (n *node) fits(s eni.Settings) error {
	switch {
	case n.fleet.inv != nil:
		return nodenetwork.BeyondType(s, n.fleet.inv)
	case n.obj.Status.ENI.Settings != nil:
		r := nodenetwork.Read(n.obj)
		return nodenetwork.BeyondType(s, &r.Inventory)
	}
	return nil
}

// choose is the template that selects a Node; nil: none does, or there is no Node, without
// which nothing is told to the fleet.
func (c *Controller) choose(ctx context.Context, name string, k *corev1.Node) (*template.Choice, error) {
	if k == nil {
		return nil, nil
	}
	all := &v1alpha1.NodeNetworkTemplateList{}
	if err := c.client.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("read NodeNetworkTemplates from the cache: %w", err)
	}
	chosen, err := template.Choose(k.Labels, all.Items)
	if err != nil { // the API server refuses such, unless its validation is off
		c.o.Logger.Warn("a template selects no node", "node", name, "error", err)
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
		eni := g.eni // the status is written without n.mu
		s.Template, s.Settings = g.chosen.Name, &eni
	}
}
