package networkpolicy

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/policytable"
	"github.com/berthnet/berth/internal/policy"
)

// Inside is a pod's own network namespace, whose table judges in place of the node's: packets of the pod do not pass the node's IP
// stack.
type Inside struct {
	Netns      string // path
	Dev, Inode uint64 // of the namespace, to which the path must lead
	Link       string // the pod's interface
}

// InsideKernel enforces policies in a pod's network namespace.
type InsideKernel interface {
	Apply(pods []policytable.Pod, elements policytable.Elements, changed policy.SetChanges) error
	ApplyElements(elements policytable.Elements, changed policy.SetChanges) error
	End(allowed func(policy.Flow) bool) (int, error)
	Present() (bool, error)
	Forget()
	Remove() error
}

// OpenInside returns how tables of pods' namespaces are opened, on a node with some namespace.
func OpenInside(node netns.NsHandle) func(Inside) InsideKernel {
	return func(of Inside) InsideKernel {
		return podKernel{of, policytable.NewInside(netns.None(), node, []string{of.Link})}
	}
}

// podKernel is a table in a namespace that is opened for each call.
type podKernel struct {
	of    Inside
	table *policytable.Table
}

func (k podKernel) open(do func() error) error {
	ns, err := netns.GetFromPath(k.of.Netns)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrGone
	} else if err != nil {
		return fmt.Errorf("open the pod's network namespace: %w", err)
	}
	defer ns.Close()
	var is unix.Stat_t
	if err := unix.Fstat(int(ns), &is); err != nil {
		return fmt.Errorf("look at the pod's network namespace: %w", err)
	}
	if is.Dev != k.of.Dev || is.Ino != k.of.Inode {
		return ErrGone
	}
	k.table.At(ns)
	return do()
}

// Apply implements InsideKernel.
func (k podKernel) Apply(pods []policytable.Pod, elements policytable.Elements, changed policy.SetChanges) error {
	return k.open(func() error { return k.table.Apply(pods, elements, changed) })
}

// ApplyElements implements InsideKernel.
func (k podKernel) ApplyElements(elements policytable.Elements, changed policy.SetChanges) error {
	return k.open(func() error { return k.table.ApplyElements(elements, changed) })
}

// End implements InsideKernel.
func (k podKernel) End(allowed func(policy.Flow) bool) (n int, err error) {
	err = k.open(func() (err error) { n, err = k.table.End(allowed); return err })
	return n, err
}

// Present implements InsideKernel.
func (k podKernel) Present() (there bool, err error) {
	err = k.open(func() (err error) { there, err = k.table.Present(); return err })
	return there, err
}

// Forget implements InsideKernel.
func (k podKernel) Forget() { k.table.Forget() }

// Remove removes the table.
func (k podKernel) Remove() error { return k.open(k.table.Remove) }

// ErrGone is the error of an InsideKernel whose namespace is gone.
var ErrGone = errors.New("the pod's network namespace is gone")

// insideTable is the table of one pod.
type insideTable struct {
	InsideKernel
	of     Inside
	pod    policytable.Pod
	failed bool
}

// applyInside brings the tables of pods' own namespaces up to date, and returns why some are not, by attachment. A pod whose namespace is
// gone is about to be removed.
func (e *Enforcer) applyInside(pods map[string]insidePod, rules bool, changed policy.SetChanges) map[string]error {
	maps.DeleteFunc(e.own.inside, func(attachment string, t *insideTable) bool {
		p, there := pods[attachment]
		return !there || p.inside != t.of
	})
	errs := map[string]error{}
	for attachment, p := range pods {
		t := e.own.inside[attachment]
		if t == nil {
			t = &insideTable{InsideKernel: e.Inside(p.inside), of: p.inside, failed: true}
			e.own.inside[attachment] = t
		}
		var err error
		switch t.pod = p.pod; {
		case rules || t.failed:
			err = t.Apply([]policytable.Pod{p.pod}, e.state.Elements, changed)
		case names(p.pod.Policies, changed):
			err = t.ApplyElements(e.state.Elements, changed)
		}
		if t.failed = err != nil; err != nil && !errors.Is(err, ErrGone) {
			errs[attachment] = fmt.Errorf("in the network namespace of %s: %w", attachment, err)
		}
	}
	return errs
}

// names tells whether policies name one of the sets that changed.
func names(list []*policy.Policy, changed policy.SetChanges) bool {
	for _, p := range list {
		for id := range p.Sets() {
			if changed[id] != nil {
				return true
			}
		}
	}
	return false
}

// endInside ends connections in pods' own namespaces.
func (e *Enforcer) endInside() (ended int, err error) {
	for _, t := range e.own.inside {
		if t.failed {
			continue
		}
		n, failed := t.End(func(f policy.Flow) bool {
			from, to := slices.Contains(t.pod.Addrs, f.Source), slices.Contains(t.pod.Addrs, f.Destination)
			return (!from || policy.Decide(t.pod.Policies, policy.Egress, f, e.state).Allowed) && (!to || policy.Decide(t.pod.Policies, policy.Ingress, f, e.state).Allowed)
		})
		if ended += n; !errors.Is(failed, ErrGone) {
			err = errors.Join(err, failed)
		}
	}
	return ended, err
}

// repairInside has the tables of pods' own namespaces applied again that are not as they were applied, and tells whether there are any.
func (e *Enforcer) repairInside() (any bool) {
	for _, t := range e.own.inside {
		if t.failed {
			continue
		}
		if present, err := t.Present(); !present && err == nil {
			t.Forget()
			t.failed, any = true, true
		}
	}
	return any
}
