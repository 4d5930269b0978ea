package nics

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
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
