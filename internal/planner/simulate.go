package planner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
)

// Modes of Settings.Mode.
const (
	ModeNode     = "node"
	ModeOperator = "operator"
)

const defaultDuration = 24 * time.Hour

// variant is one alternative of a scenario, checked and with its defaults.
type variant struct {
	Scenario
	name     string
	settings Settings
	eni      eni.Settings
	maxPods  map[string]int // by node group
	steps    int            // the maximum number of events of its simulation
}

func (v *variant) cooling() time.Duration {
	if v.settings.Cooling == nil {
		return ipam.DefaultCooling
	}
	return v.settings.Cooling.Std()
}

func (s Scenario) sample() time.Duration {
	return s.Sample.Or(max(time.Second, (s.Duration.Or(defaultDuration) / 240).Truncate(time.Second)))
}

// Simulate checks a scenario and simulates its alternatives. The error is a Problems if the scenario has mistakes. If
// ctx ends, so does the simulation, with an error.
func Simulate(ctx context.Context, s Scenario) (*Result, error) {
	plans, err := s.plans()
	if err != nil {
		return nil, err
	}
	out := &Result{Name: s.Name, Description: s.Description, Duration: plans[0].Duration}
	for _, p := range plans {
		one, err := p.simulate(ctx)
		if err != nil {
			return nil, fmt.Errorf("simulate %s: %w", p.name, err)
		}
		out.Alternatives = append(out.Alternatives, one)
	}
	return out, nil
}

func (v *variant) simulate(ctx context.Context) (out OfAlternative, err error) {
	err = inBubble(ctx, func(e *engine) error {
		e.most = v.steps
		w, err := newWorld(e, v)
		if err != nil {
			return err
		}
		w.work.begin()
		w.rec.begin()
		err = w.run(w.rec.start.Add(v.Duration.Std()), nil)
		if errors.Is(err, errTooLong) {
			w.rec.out.Stopped, err = err.Error(), nil
		}
		out = w.rec.finish()
		return errors.Join(err, w.rec.failed, w.stop())
	})
	return out, err
}

// plans returns the alternatives of a scenario, or Problems.
func (s Scenario) plans() ([]*variant, error) {
	if problems := s.check(); len(problems) > 0 {
		return nil, problems
	}
	s.Duration = Duration(s.Duration.Or(defaultDuration))
	var out []*variant
	for i := range len(s.Alternatives) + 1 {
		var a Alternative
		if i > 0 {
			a = s.Alternatives[i-1]
		}
		p := s.with(a)
		if i == 0 {
			p.name = cmp.Or(s.Settings.Name, asGiven)
		}
		if problems := p.complete(); len(problems) > 0 {
			return nil, problems.in(i, a)
		}
		out = append(out, p)
	}
	return out, nil
}

// with returns a scenario with the changes of an alternative.
func (s Scenario) with(a Alternative) *variant {
	p := &variant{Scenario: s, name: a.Name, settings: s.Settings, maxPods: map[string]int{}, steps: maxSteps}
	if a.Settings != nil {
		p.settings = *a.Settings
	}
	p.Subnets, p.Nodes = slices.Clone(s.Subnets), slices.Clone(s.Nodes)
	for i, n := range p.Subnets {
		if cidr, ok := a.CIDRs[n.Name]; ok {
			p.Subnets[i].CIDR = cidr
		}
	}
	for i, g := range p.Nodes {
		if t, ok := a.InstanceTypes[g.Name]; ok {
			p.Nodes[i].InstanceType = t
		}
		if n, ok := a.Counts[g.Name]; ok {
			p.Nodes[i].Count, p.Nodes[i].Changes = n, nil
		}
	}
	return p
}
