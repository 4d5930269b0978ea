package crash

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
)

// In one of hotOdds steps of a long soak a running pod gets a NIC, or loses the one that it got.
const hotOdds = 3

// hotName is the interface that a running pod gets.
const hotName = "hot"

// hotplug adds a NIC to a running pod, or removes the one that it added.
func (w *worker) hotplug(ctx context.Context) {
	name := w.pods[w.dice.IntN(len(w.pods))]
	s := w.shapes[name]
	p, err := w.node.Pod(name)
	if s.network == "" || err != nil { // its ADD failed, which is a violation already
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	i := slices.IndexFunc(s.nics, func(n wantNIC) bool { return n.name == hotName })
	if i >= 0 {
		w.operation(taken, w.node, name, func() error { return w.owners.unplug(ctx, w.lab, p, s) })
		w.nics.back(shape{nics: s.nics[i:]})
		s.entries, s.nics = s.entries[:i], s.nics[:i]
		w.shapes[name] = s
		return
	}
	if len(s.nics) == maxNICs { // as a VPC has it by default (maxNICsPerPod)
		return
	}
	n, keys := wantNIC{name: hotName}, []string{"name: " + hotName}
	if w.dice.IntN(2) == 0 {
		n.claim = w.nics.take(s.network, w.dice)
	}
	switch {
	case n.claim != nil:
		keys = append(keys, n.claim.entry)
	case w.dice.IntN(2) == 0:
		keys = append(keys, "subnet: subnet-2")
	}
	s.entries, s.nics = append(slices.Clone(s.entries), "{"+strings.Join(keys, ", ")+"}"), append(slices.Clone(s.nics), n)
	w.shapes[name] = s
	w.operation(given, w.node, name, func() error { return w.owners.plug(ctx, w.lab, p, s) })
}

// annotate has a running pod ask for the NICs of a shape, except the last ones.
func annotate(ctx context.Context, l *lab.Lab, p *node.Pod, s shape, without int) error {
	nics := "[" + strings.Join(s.entries[:len(s.entries)-without], ", ") + "]"
	return kube.Retry(ctx, "change the NICs of pod "+p.Name, func() error { return l.Kube.AnnotatePod(ctx, p, v1alpha1.AnnotationNICs, nics) })
}

// hotNIC is the PodNIC of hotName, or nil.
func hotNIC(ctx context.Context, l *lab.Lab, p *node.Pod) (*v1alpha1.PodNIC, error) {
	all, err := l.Kube.PodNICs(ctx)
	for i := range all {
		if n := &all[i]; n.Status.Pod != nil && n.Status.Pod.UID == p.UID && n.Status.Interface == hotName {
			return n, err
		}
	}
	return nil, err
}

// plug waits until a running pod has the last NIC of a shape, and records its address.
func (l *addressOwners) plug(ctx context.Context, of *lab.Lab, p *node.Pod, s shape) error {
	if err := annotate(ctx, of, p, s, 0); err != nil {
		return err
	}
	var nic *v1alpha1.PodNIC
	err := poll.Until(ctx, func() (err error) {
		if nic, err = hotNIC(ctx, of, p); err != nil {
			return err
		}
		if nic == nil {
			return fmt.Errorf("%s has no PodNIC", hotName)
		}
		if !meta.IsStatusConditionTrue(nic.Status.Conditions, v1alpha1.ConditionPlugged) || len(nic.Status.Addresses) == 0 {
			return fmt.Errorf("PodNIC %s says %+v", nic.Name, nic.Status)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s as %s: %w", hotName, s.entries[len(s.entries)-1], err)
	}
	cidr, err := netip.ParsePrefix(nic.Status.Addresses[0].CIDR)
	if err != nil {
		return fmt.Errorf("PodNIC %s: %w", nic.Name, err)
	}
	if c := s.nics[len(s.nics)-1].claim; c != nil {
		if err := c.holds([]netip.Addr{cidr.Addr()}, nic.Status.MAC); err != nil {
			l.violate(other, fmt.Sprintf("pod %s/%s: %s (%s) %v", p.Node, p.Name, hotName, c.entry, err))
		}
	}
	l.take(p.Node+"/"+p.Name, time.Now(), address{s.network, cidr.Addr()})
	return nil
}

// unplug removes the last NIC of a shape from a running pod. Its address may be reused as soon as the
// pod does not ask for it.
func (l *addressOwners) unplug(ctx context.Context, of *lab.Lab, p *node.Pod, s shape) error {
	l.giveLast(p.Node+"/"+p.Name, time.Now())
	if err := annotate(ctx, of, p, s, 1); err != nil {
		return err
	}
	return poll.Until(ctx, func() error {
		nic, err := hotNIC(ctx, of, p)
		if nic != nil {
			err = errors.Join(err, fmt.Errorf("PodNIC %s is the pod's still: %+v", nic.Name, nic.Status))
		}
		return err
	})
}
