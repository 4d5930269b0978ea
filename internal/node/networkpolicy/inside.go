package networkpolicy

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/berthnet/berth/internal/kernel/policytable"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/policy"
)

// Inside describes interfaces of a pod whose packets do not pass the node's IP stack. Their policies are enforced in the pod's
// network namespace.
type Inside struct {
	Netns string       // path of the pod's network namespace
	ID    rtnl.NetnsID // of that namespace; not checked if zero
	Links []string     // the interfaces
	// Only is set if none of the pod's packets pass the node's IP stack. Otherwise its first interface is not in Links.
	Only bool
}

func (i *Inside) equal(o *Inside) bool {
	if i == nil || o == nil {
		return i == o
	}
	return i.Netns == o.Netns && i.ID == o.ID && i.Only == o.Only && slices.Equal(i.Links, o.Links)
}

// sameNetns reports whether both are for the same network namespace.
func (i Inside) sameNetns(o Inside) bool {
	if i.ID != (rtnl.NetnsID{}) && o.ID != (rtnl.NetnsID{}) {
		return i.ID == o.ID
	}
	return i.Netns == o.Netns
}

// PodKernel enforces the policies of one pod in its network namespace. *policytable.Inside implements it.
type PodKernel interface {
	Apply(pods []policytable.Pod, elements policytable.Elements, changed policy.SetChanges) error
	ApplyElements(elements policytable.Elements, changed policy.SetChanges) error
	Connections() ([]policytable.Connection, error)
	End(list []policytable.Connection, allowed func(policy.Flow) bool) (int, error)
	Refused() ([]policytable.Refused, error)
	Present() (bool, error)
	Forget()
	Remove() error
	Close() error
}

// insides holds the pods with an Inside. Only the goroutine of Run changes it.
type insides struct {
	open    func(i Inside) (PodKernel, Denials, error)
	log     *slog.Logger
	denied  denialLog      // the node's log
	running sync.WaitGroup // goroutines that read logs of denied connections

	mu     sync.Mutex // guards tables, which other goroutines read
	tables map[string]insidePod
}

// insidePod is a pod with its table. A pod without policies has no table, neither here nor in the kernel.
type insidePod struct {
	Inside
	kernel PodKernel
	read   <-chan struct{} // closed when the reader of the log of denied connections ends; nil if there was none
}

// wanted is an Inside with its desired policies.
type wanted struct {
	Inside
	policytable.Pod
}

// apply updates the tables of pods, and returns an error for each attachment whose table could not be updated.
func (i *insides) apply(v view, rules bool, elements policytable.Elements, changed policy.SetChanges) map[string]error {
	failed := map[string]error{}
	for attachment, t := range i.all() {
		switch w, there := v.inside[attachment]; {
		case there && w.Inside.equal(&t.Inside):
		case there && w.sameNetns(t.Inside):
			i.drop(attachment, t, false) // the table opened in its place replaces it atomically
		default:
			i.drop(attachment, t, true)
		}
	}
	for attachment, w := range v.inside {
		t, err := i.opened(attachment, w)
		if err == nil && t.kernel != nil {
			err = t.apply(w, rules, elements, changed)
		}
		if err != nil && !errors.Is(err, rtnl.ErrNoNetns) { // without it the pod is gone
			failed[attachment] = fmt.Errorf("in the network namespace of attachment %s: %w", attachment, err)
		}
	}
	return failed
}

// opened returns the table of a pod, opened if the pod has policies. A pod without policies may still have a table from an
// earlier process.
func (i *insides) opened(attachment string, w wanted) (insidePod, error) {
	i.mu.Lock()
	t, known := i.tables[attachment]
	i.mu.Unlock()
	if known && (t.kernel == nil) == (len(w.Policies) == 0) {
		return t, nil
	}
	if t.kernel == nil {
		if t.read != nil {
			<-t.read // the kernel has one log for each network namespace
		}
		kernel, log, err := i.open(w.Inside)
		if err != nil {
			return t, err
		}
		t = insidePod{Inside: w.Inside, kernel: kernel}
		if log != nil {
			read := make(chan struct{})
			t.read = read
			i.running.Go(func() {
				defer close(read)
				i.denied.inside(attachment).run(log)
			})
		}
		i.set(attachment, t)
	}
	if len(w.Policies) == 0 {
		if err := t.kernel.Remove(); err != nil {
			return t, err // stays open for the next attempt
		}
		err := t.kernel.Close()
		t.kernel = nil
		i.set(attachment, t)
		return t, err
	}
	return t, nil
}

func (i *insides) set(attachment string, t insidePod) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.tables[attachment] = t
}

// apply enforces a pod's policies in its network namespace.
func (t insidePod) apply(w wanted, rules bool, elements policytable.Elements, changed policy.SetChanges) error {
	err := policytable.ErrUnknown
	if !rules {
		err = t.kernel.ApplyElements(elements, changed)
	}
	if errors.Is(err, policytable.ErrUnknown) {
		err = t.kernel.Apply([]policytable.Pod{w.Pod}, elements, changed)
	}
	return err
}

// connections lists the connections of pods. Listing those of one pod costs as much as all of the node's, because the kernel keeps
// them in one table.
func (i *insides) connections() map[string]insideConnections {
	all := map[string]insideConnections{}
	for attachment, t := range i.all() {
		if t.kernel != nil {
			open, err := t.kernel.Connections()
			all[attachment] = insideConnections{t.kernel, open, err}
		}
	}
	return all
}

// end ends connections that the policies of pods no longer allow.
func (i *insides) end(v view, found map[string]insideConnections) error {
	var errs []error
	for attachment, t := range i.all() {
		w, there := v.inside[attachment]
		f, listed := found[attachment]
		if !there || !listed || t.kernel != f.kernel {
			continue
		}
		err := f.err
		if err == nil {
			err = t.end(w, f.open, v.sets)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("in the network namespace of attachment %s: %w", attachment, err))
		}
	}
	return errors.Join(errs...)
}

// end ends the listed connections that a pod's policies deny.
func (t insidePod) end(w wanted, list []policytable.Connection, sets policy.Sets) error {
	_, err := t.kernel.End(list, func(f policy.Flow) bool {
		return (!slices.Contains(w.Addrs, f.Source) || policy.Decide(w.Policies, policy.Egress, f, sets).Allowed) &&
			(!slices.Contains(w.Addrs, f.Destination) || policy.Decide(w.Policies, policy.Ingress, f, sets).Allowed)
	})
	return err
}

// drop closes the table of a pod that is gone or has another Inside, and with remove also deletes it from the kernel.
func (i *insides) drop(attachment string, t insidePod, remove bool) {
	if t.kernel != nil {
		var err error
		if remove {
			err = t.kernel.Remove()
		}
		if err = errors.Join(err, t.kernel.Close()); err != nil {
			i.log.Warn("cannot remove network policies from a pod's network namespace", "attachment", attachment, "err", err)
		}
	}
	if t.read != nil && !remove {
		<-t.read
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.tables, attachment)
}

// closeAll closes the tables and their logs. The tables stay in force.
func (i *insides) closeAll() {
	for _, t := range i.all() {
		if t.kernel != nil {
			_ = t.kernel.Close()
		}
	}
	i.running.Wait()
}

func (i *insides) all() map[string]insidePod {
	i.mu.Lock()
	defer i.mu.Unlock()
	return maps.Clone(i.tables)
}

// changed forgets the state of tables that other software has changed, and reports whether there were any.
func (i *insides) changed() (some bool) {
	for _, t := range i.all() {
		if t.kernel == nil {
			continue
		}
		if present, err := t.kernel.Present(); !present && err == nil {
			t.kernel.Forget()
			some = true
		}
	}
	return some
}

// refused returns the counters of the node and of pods, without those that cannot be read.
func (i *insides) refused(node Kernel) []policytable.Refused {
	list, err := node.Refused()
	if err != nil {
		i.log.Warn("cannot count the packets that network policies rejected", "err", err)
	}
	for _, t := range i.all() {
		if t.kernel != nil {
			if more, err := t.kernel.Refused(); err == nil { // a pod may be gone
				list = append(list, more...)
			}
		}
	}
	return list
}
