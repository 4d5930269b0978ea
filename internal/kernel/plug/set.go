package plug

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Set is a Plugger of several kinds. It passes each port to the Plugger of its kind.
type Set map[Kind]Plugger

// of returns the Plugger of a kind. Errors: ErrInvalid.
func (s Set) of(k Kind) (Plugger, error) {
	if p := s[k]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("Kind: %q: want one of %q, the kinds that this node plugs: %w", k, slices.Sorted(maps.Keys(s)), ErrInvalid)
}

// Expect implements Plugger.
func (s Set) Expect(ctx context.Context, w Want) error {
	p, err := s.of(w.Kind)
	if err != nil {
		return err
	}
	return p.Expect(ctx, w)
}

// Plug implements Plugger.
func (s Set) Plug(ctx context.Context, w Want) (Done, error) {
	p, err := s.of(w.Kind)
	if err != nil {
		return Done{}, err
	}
	return p.Plug(ctx, w)
}

// Await implements Plugger.
func (s Set) Await(ctx context.Context, w Want) error {
	p, err := s.of(w.Kind)
	if err != nil {
		return err
	}
	return p.Await(ctx, w)
}

// Unplug implements Plugger. It succeeds for kinds that this node does not plug, such as OVS without --ovsdb, so that the
// pod can be deleted. When the kind is plugged again, berthd removes the remains at its start.
func (s Set) Unplug(ctx context.Context, r Ref) error {
	if p := s[r.Kind]; p != nil {
		return p.Unplug(ctx, r)
	}
	return nil
}

// Check implements Plugger.
func (s Set) Check(ctx context.Context, w Want) error {
	p, err := s.of(w.Kind)
	if err != nil {
		return err
	}
	return p.Check(ctx, w)
}

// List implements Plugger. It lists the ports of all other kinds even if one kind fails.
func (s Set) List(ctx context.Context) ([]Found, error) {
	var all []Found
	var errs []error
	for _, k := range slices.Sorted(maps.Keys(s)) {
		list, err := s[k].List(ctx)
		all, errs = append(all, list...), append(errs, err)
	}
	slices.SortStableFunc(all, Found.Compare)
	return all, errors.Join(errs...)
}

// Remove implements Plugger.
func (s Set) Remove(ctx context.Context, f Found) error {
	p, err := s.of(f.Kind)
	if err != nil {
		return err
	}
	return p.Remove(ctx, f)
}

var _ Plugger = Set{}
