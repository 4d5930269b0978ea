package nodeenis

import (
	"context"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/nodenetwork"
	"github.com/berthnet/berth/internal/nodenetwork/template"
	"github.com/berthnet/berth/internal/operator/objects"
)

// configuration is a node's settings in the fleet.
type configuration struct {
	settings eni.Settings
	set      bool             // the fleet has settings
	chosen   *template.Choice // the template that is part of them; nil: none is
	eni      v1alpha1.ENISpec // spec.eni with what it sets
	seed     eni.Inventory    // what was published before this process; until the fleet has it
	err      error            // of the newest spec or template; settings are older then
	valid    bool             // the settings can be applied
}

// configure gives the fleet the settings by the object and the template that selects its Node k,
// if they changed. Invalid settings change only the node's conditions, and so do any while the
// instance is not proved to be the Node's.
func (c *Controller) configure(ctx context.Context, n *node, k *corev1.Node) error {
	chosen, err := c.choose(ctx, n.name, k)
	if err != nil {
		return err
	}
	n.mu.Lock()
	s := &n.state
	next := s.requested(chosen)
	known, same := s.config.set, s.config.set && reflect.DeepEqual(next.settings, s.config.settings)
	s.config.err = next.err
	if next.err != nil && !known {
		if before, ok := s.recorded(); ok {
			before.err, next = next.err, before
		}
	}
	if same && next.err == nil {
		s.config.chosen, s.config.eni = next.chosen, next.eni
	}
	seed, refused := s.config.seed, s.eligibility.refused != (refusal{})
	n.mu.Unlock()
	if same || !next.valid || refused || !known && c.heldForRecreation(n) {
		return nil
	}
	err = c.fleet.Set(n.name, n.instanceID, next.settings, seed, n)
	n.mu.Lock()
	defer n.mu.Unlock()
	if err != nil {
		s.config.err = err
		return nil
	}
	next.set = true
	s.config = next
	return nil
}

// requested is the configuration by the object and a template.
func (s *state) requested(chosen *template.Choice) configuration {
	next := configuration{chosen: chosen, eni: s.obj.Spec.ENI}
	if chosen != nil {
		next.eni = *template.Merge(&s.obj.Spec.ENI, &chosen.ENI)
	}
	if next.read(s.obj); next.err == nil {
		next.err = s.fits(next.settings)
		next.valid = next.err == nil
	}
	if next.err != nil && chosen != nil {
		next.err = fmt.Errorf("with %s: %w", chosen.Name, next.err)
	}
	return next
}

// recorded is the configuration that the object's status has of its template, for an
// operator that starts while the template is invalid.
func (s *state) recorded() (before configuration, ok bool) {
	is := &s.obj.Status.ENI
	if is.Settings == nil {
		return before, false
	}
	before = configuration{chosen: &template.Choice{Name: is.Template}, eni: *is.Settings}
	before.read(s.obj)
	return before, before.valid
}

// read makes settings of spec.eni.
func (g *configuration) read(o *v1alpha1.NodeNetwork) {
	spec := v1alpha1.NodeNetworkSpec{InstanceID: o.Spec.InstanceID, InstanceType: o.Spec.InstanceType, ENI: g.eni}
	g.settings, g.err = nodenetwork.Settings(&spec)
	g.settings.DrainOutdated = g.chosen != nil && g.chosen.Drain
	g.valid = g.err == nil
}

// fits tells why the instance cannot have settings; nil: it can, as far as is known. What
// the object says of the instance may be stale: it counts only where other settings stay in
// force meanwhile, with which the fleet asks EC2.
func (s *state) fits(settings eni.Settings) error {
	switch {
	case s.fleet.inv != nil:
		return nodenetwork.BeyondType(settings, s.fleet.inv)
	case s.obj.Status.ENI.Settings != nil:
		r := nodenetwork.Read(s.obj)
		return nodenetwork.BeyondType(settings, &r.Inventory)
	}
	return nil
}

// choose is the template that selects a Node; nil: none does, or the Node is missing.
func (c *Controller) choose(ctx context.Context, name string, k *corev1.Node) (*template.Choice, error) {
	if k == nil {
		return nil, nil
	}
	all, err := objects.List[v1alpha1.NodeNetworkTemplateList](ctx, c.client)
	if err != nil {
		return nil, err
	}
	chosen, err := template.Choose(k.Labels, all.Items)
	if err != nil { // the API server rejects such a template, unless its validation is off
		c.o.Logger.Warn("template ignored: its selector is invalid", "node", name, "err", err)
	}
	return chosen, nil
}

// everyNode are the objects that a template may be for: all. There are few templates, and they
// seldom change.
func (c *Controller) everyNode(context.Context, client.Object) (all []client.ObjectKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.nodes {
		all = append(all, client.ObjectKey{Name: name})
	}
	return all
}

// describe writes to an object's status which template is in force.
func (g *configuration) describe(s *v1alpha1.ENIStatus) {
	if g.set && g.chosen != nil {
		eni := g.eni // the status is written without the node's lock
		s.Template, s.Settings = g.chosen.Name, &eni
	}
}
