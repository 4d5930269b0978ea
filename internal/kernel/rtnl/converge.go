package rtnl

import (
	"errors"
	"fmt"
)

// Kind describes the objects of one kind in a network namespace, such as the policy rules of a pod, once:
// what makes two of them the same, and how one is added and removed. Compare tells how what the kernel has
// differs from what it should have; set, CHECK, repair and removal all follow from the Diff.
type Kind[T any, K comparable] struct {
	// Key identifies an object: the kernel has at most one object with a key.
	Key func(T) K
	// Same reports whether an observed object is as desired; nil: if it has the same key.
	Same func(desired, observed T) bool
	// Name names an object in reports and errors, such as "route 10.0.0.0/8 of table 117".
	Name func(T) string
	// Add adds an object, or replaces the one that has its key.
	Add func(T) error
	// Remove removes an observed object. An error of one that is gone (IsGone) is ignored.
	Remove func(T) error
	// Do makes each change. It gets a description such as "add route …". Nil: call change.
	Do func(what string, change func() error) error
}

// Diff is how observed objects differ from the desired ones.
type Diff[T any] struct {
	Missing []T         // desired and not observed, each once, in the order of the desired ones
	Changed []Change[T] // observed, and not as desired
	Extra   []T         // observed and not desired, in the order of the observed ones
}

// Change is an object that differs from the desired one with the same key.
type Change[T any] struct{ Desired, Observed T }

// Compare finds what differs.
func (k Kind[T, K]) Compare(desired, observed []T) (d Diff[T]) {
	wanted, have := map[K]bool{}, map[K]T{}
	for _, o := range desired {
		wanted[k.Key(o)] = true
	}
	for _, o := range observed {
		have[k.Key(o)] = o
		if !wanted[k.Key(o)] {
			d.Extra = append(d.Extra, o)
		}
	}
	for _, o := range desired {
		key := k.Key(o)
		if !wanted[key] {
			continue // it was desired twice
		}
		delete(wanted, key)
		switch observed, ok := have[key]; {
		case !ok:
			d.Missing = append(d.Missing, o)
		case k.Same != nil && !k.Same(o, observed):
			d.Changed = append(d.Changed, Change[T]{o, observed})
		}
	}
	return d
}

// Set adds the objects that are missing, then replaces those that changed. It stops at the first error, and
// names what it added.
func (k Kind[T, K]) Set(d Diff[T]) (changed []string, err error) {
	add := d.Missing
	for _, c := range d.Changed {
		add = append(add[:len(add):len(add)], c.Desired)
	}
	for _, o := range add {
		if err := k.do("add "+k.Name(o), func() error { return k.Add(o) }); err != nil {
			return changed, err
		}
		changed = append(changed, k.Name(o))
	}
	return changed, nil
}

// RemoveAll removes objects. One that cannot be removed does not keep it from the rest. It names what it removed.
func (k Kind[T, K]) RemoveAll(extra []T) (changed []string, err error) {
	var errs []error
	for _, o := range extra {
		err := k.do("remove "+k.Name(o), func() error {
			if err := k.Remove(o); err != nil && !IsGone(err) {
				return err
			}
			return nil
		})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		changed = append(changed, "removed "+k.Name(o))
	}
	return changed, errors.Join(errs...)
}

func (k Kind[T, K]) do(what string, change func() error) error {
	if k.Do != nil {
		return k.Do(what, change)
	}
	if err := change(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
