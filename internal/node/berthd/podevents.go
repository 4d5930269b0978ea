package berthd

import (
	"fmt"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/node/podevents"
)

// podEvents returns who tells Pods of their ADDs; nil where nobody does. In node
// mode the Kubernetes API is needed for nothing else, so that one out of reach is a
// reason to do without, unless the settings ask for it.
func (n *node) podEvents() (*podevents.Teller, error) {
	if n.cfg.PodEvents == config.PodEventsNever {
		return nil, nil
	}
	writer, err := kubeapi.NewPodEvents(n.cfg.Kubeconfig)
	switch {
	case err == nil:
	case n.cfg.PodEvents == config.PodEventsAuto && n.cfg.IPAM == config.IPAMENI && n.cfg.Kubeconfig == "":
		n.log.Info("Pods are told of nothing by Events: there is no service account and no --kubeconfig", "err", err)
		return nil, nil
	default:
		return nil, fmt.Errorf("Events of Pods (--pod-events=%s): %w", n.cfg.PodEvents, err)
	}
	return podevents.New(podevents.Options{
		Node: n.cfg.NodeName, Writer: writer, Clock: n.clock, Log: n.log, Counted: n.metrics.CountPodEvents,
	}), nil
}
