package nics

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kubeapi"
)

var _ = failpoint.Register("port.report.before", "port.report.after", "port.remove.before")

// report is a state that status.node of a PodNIC lacks.
type report = kubeapi.Report[v1alpha1.PodNICNode]

// reporter writes the status of the node's PodNICs, one after the other.
func (n *NICs) reporter() *kubeapi.Reporter[v1alpha1.PodNICNode] {
	return &kubeapi.Reporter[v1alpha1.PodNICNode]{
		Clock: n.clock, Log: n.log.With("kind", "PodNIC"), AtOnce: 1, Wake: n.report, Due: n.due, Write: n.write,
	}
}

// due returns the reports that PodNICs lack, by name.
func (n *NICs) due(now time.Time) (list []report) {
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
func (n *NICs) write(ctx context.Context, r report) error {
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": r.UID, "resourceVersion": r.Version},
		"status":   map[string]any{"node": fields(r.State)},
	})
	if err == nil {
		err = failpoint.Around("port.report", func() error {
			return n.api.In(r.Name.Namespace).Patch(ctx, types.MergePatchType, podNICs, r.Name.Name, "status", body, nil)
		})
	}
	if err != nil {
		err = fmt.Errorf("write status.node of PodNIC %s: %w", r.Name, err)
	}
	n.cfg.Observer.Reported(string(r.State.State), err)
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
