package podegress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/tunnel"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
)

// report is a state that status.node of an EgressClient lacks.
type report = kubeapi.Report[v1alpha1.EgressClientNode]

// reportsAtOnce bounds the reports in flight: gateways serve a pod only after the report, and a burst of pods has a
// second until it sends its first packets again (RFC 6298, section 2).
const reportsAtOnce = 16

// reporter writes the status of the node's EgressClients.
func (c *Clients) reporter() *kubeapi.Reporter[v1alpha1.EgressClientNode] {
	return &kubeapi.Reporter[v1alpha1.EgressClientNode]{
		Clock: c.clock, Log: c.log.With("kind", "EgressClient"), AtOnce: reportsAtOnce, Wake: c.report, Write: c.write,
		Due: func(time.Time) []report {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.observed.due()
		},
	}
}

// write applies status.node of an EgressClient. The precondition is the resourceVersion: the API server accepts no
// UID as one for a status.
func (c *Clients) write(ctx context.Context, r report) error {
	body, err := json.Marshal(map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "EgressClient",
		"metadata": map[string]any{"namespace": r.Name.Namespace, "name": r.Name.Name, "uid": r.UID, "resourceVersion": r.Version},
		"status":   map[string]any{"node": r.State},
	})
	if err == nil {
		err = c.api.In(r.Name.Namespace).Patch(ctx, types.ApplyPatchType, egressClients, r.Name.Name, "status", body, nil)
	}
	if err != nil {
		err = fmt.Errorf("write status.node of EgressClient %s: %w", r.Name, err)
	}
	c.cfg.Metrics.Reported(string(r.State.State), err)
	return err
}

// Limits of status.node of an EgressClient, in bytes.
const (
	longestMessage   = 512
	longestContainer = 128
)

// The reasons of status.node.
const (
	reasonNoFoU  = "NoFoU"
	reasonFailed = "SetUpFailed"
)

// failure is why a pod's egress could not be set up.
type failure struct{ reason, message string }

func failureOf(err error) *failure {
	f := &failure{reason: reasonFailed, message: err.Error()}
	if errors.Is(err, tunnel.ErrNoFoU) {
		f.reason = reasonNoFoU
	}
	return f
}

// state returns what status.node of an EgressClient is to be; nil: what it is.
//
// A pod that has no attachment here, although the object says so, ended with a DEL or while no daemon ran: its
// addresses may be another's.
func (o *observed) state(m egressClient) *v1alpha1.EgressClientNode {
	var want v1alpha1.EgressClientNode
	node := m.node
	h, ok := o.pods.latest(m)
	switch e := h.rec.Egress; {
	case !ok && (node == nil || node.State == v1alpha1.EgressClientGone):
		return nil
	case !ok:
		want = v1alpha1.EgressClientNode{State: v1alpha1.EgressClientGone, ContainerID: node.ContainerID}
	case h.failed == nil && e != nil && e.State != attachment.EgressSetUp:
		return nil // reported once the change is complete
	default:
		want = v1alpha1.EgressClientNode{
			State: v1alpha1.EgressClientSetUp, ContainerID: source.ASCII(h.rec.Key.ContainerID, longestContainer),
			Addresses: texts(ownAddresses(h.rec)), Egresses: references(e),
		}
		if h.failed != nil {
			want.State, want.Egresses = v1alpha1.EgressClientFailed, h.before
			want.Reason, want.Message = h.failed.reason, source.ASCII(h.failed.message, longestMessage)
		}
		if node == nil && h.failed == nil && len(want.Egresses) == 0 {
			return nil // it uses no Egress, and never did
		}
	}
	if node != nil && sameNode(*node, want) {
		return nil
	}
	return &want
}

// sameNode compares states; an empty list equals nil.
func sameNode(a, b v1alpha1.EgressClientNode) bool {
	for _, n := range []*v1alpha1.EgressClientNode{&a, &b} {
		if len(n.Addresses) == 0 {
			n.Addresses = nil
		}
		if len(n.Egresses) == 0 {
			n.Egresses = nil
		}
	}
	return reflect.DeepEqual(a, b)
}

// ownAddresses returns the local addresses of a pod's tunnels: the first of each family of its own interface.
func ownAddresses(rec attachment.Record) (out []netip.Addr) {
	for _, four := range []bool{true, false} {
		for _, a := range rec.OwnAddrs() {
			if a.Is4() == four && a.IsGlobalUnicast() {
				out = append(out, a)
				break
			}
		}
	}
	return out
}

func texts(addrs []netip.Addr) (out []string) {
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return out
}

// references returns the Egresses of an attachment.
func references(e *attachment.Egress) (out []v1alpha1.EgressReference) {
	if e == nil {
		return nil
	}
	for _, u := range e.Egresses {
		out = append(out, useOf(u).ref())
	}
	return out
}
