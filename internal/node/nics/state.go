package nics

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/source"
)

// longestReport bounds PodNICNode.message, in bytes.
const longestReport = 512

// state returns what status.node of a PodNIC is to be; nil: what it is.
//
// A NIC that is not plugged here, although the object says so, was unplugged by a DEL or vanished while no daemon ran.
// recorded: its port is in a record nevertheless; then an ADD or a DEL is working on it, unless the DEL has unplugged
// it.
func (b *observed) state(o object, recorded bool, now time.Time) *v1alpha1.PodNICNode {
	var want v1alpha1.PodNICNode
	h, ok := b.plugged[string(o.uid)]
	f, failed := b.failed[string(o.uid)]
	switch {
	case ok && h.nic.Port == o.port && h.rec.Pod.UID == o.pod:
		want = v1alpha1.PodNICNode{
			State: v1alpha1.NodePlugged, PortID: h.nic.Port, ContainerID: h.rec.Key.ContainerID, HostInterface: h.nic.HostLink,
			Since: metav1.NewTime(h.rec.Since.Truncate(time.Second)),
		}
		switch {
		case failed && f.port == o.port:
			want.Reason, want.Message = f.reason, messageOf(f.message)
		case usable(o) && outdated(h.rec, h.nic, o.nic):
			want.Reason, want.Message = reasonMoved, messageOf(movedMessage(h.nic, o.nic))
		}
	case ok:
		return nil // of an earlier pod or port: the daemon unplugs it
	case failed && f.pod == o.pod && f.port == o.port:
		want = v1alpha1.PodNICNode{State: v1alpha1.NodeFailed, PortID: o.port, Reason: f.reason, Message: messageOf(f.message), Since: metav1.NewTime(now.Truncate(time.Second))}
	case o.node != nil && o.node.State == v1alpha1.NodePlugged && (!recorded || b.unplugged[string(o.uid)]):
		want = v1alpha1.PodNICNode{State: v1alpha1.NodeUnplugged, PortID: o.node.PortID, Since: metav1.NewTime(now.Truncate(time.Second))}
	default:
		return nil
	}
	if o.node != nil && sameState(*o.node, want) {
		return nil
	}
	return &want
}

// sameState compares states without their times.
func sameState(a, b v1alpha1.PodNICNode) bool {
	a.Since, b.Since = metav1.Time{}, metav1.Time{}
	return a == b
}

// messageOf returns a text as PodNICNode.message accepts it.
func messageOf(s string) string { return source.ASCII(s, longestReport) }

var _ = failpoint.Register("port.report.before", "port.report.after", "port.remove.before")

// report is a state that status.node of a PodNIC lacks.
type report = kubeapi.Report[v1alpha1.PodNICNode]

// reports makes the reports of NICs.
type reports struct{ nics *NICs }

// newReporter writes the status of the node's PodNICs, one after the other.
func newReporter(n *NICs) *kubeapi.Reporter[v1alpha1.PodNICNode] {
	r := reports{n}
	return &kubeapi.Reporter[v1alpha1.PodNICNode]{
		Clock: n.clock, Log: n.log.With("kind", "PodNIC"), AtOnce: 1, Wake: n.report, Due: r.due, Write: r.write,
	}
}

// due returns the reports that PodNICs lack, by name.
func (r reports) due(now time.Time) (list []report) {
	n := r.nics
	n.mu.Lock()
	objects := n.observed.sorted()
	n.mu.Unlock()
	for _, o := range objects {
		recorded := o.node != nil && n.cfg.Recorded(o.node.PortID) // takes the lock of the records, never below n.mu
		n.mu.Lock()
		state := n.observed.state(o, recorded, now)
		n.mu.Unlock()
		if state != nil {
			list = append(list, report{Name: o.name, UID: o.uid, Version: o.version, State: *state})
		}
	}
	return list
}

// write writes status.node of a PodNIC unless the object has changed.
func (r reports) write(ctx context.Context, one report) error {
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": one.UID, "resourceVersion": one.Version},
		"status":   map[string]any{"node": fields(one.State)},
	})
	if err == nil {
		err = failpoint.Around("port.report", func() error {
			return r.nics.api.In(one.Name.Namespace).Patch(ctx, types.MergePatchType, podNICs, one.Name.Name, "status", body, nil)
		})
	}
	if err != nil {
		err = fmt.Errorf("write status.node of PodNIC %s: %w", one.Name, err)
	}
	r.nics.cfg.Metrics.Reported(string(one.State.State), err)
	return err
}

// fields returns all fields of a state: a merge patch leaves others as they are.
func fields(s v1alpha1.PodNICNode) map[string]any {
	optional := func(v string) any {
		if v == "" {
			return nil
		}
		return v
	}
	return map[string]any{
		"state": s.State, "portID": s.PortID, "since": s.Since,
		"containerID": optional(s.ContainerID), "hostInterface": optional(s.HostInterface), "reason": optional(s.Reason), "message": optional(s.Message),
	}
}
