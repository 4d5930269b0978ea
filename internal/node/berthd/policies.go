package berthd

import (
	"fmt"

	"github.com/vishvananda/netns"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/kernel/policytable"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/node/networkpolicy"
)

// openPolicyTable opens the table in the network namespace of the process.
func openPolicyTable() (PolicyTable, error) {
	ns, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("open the node's network namespace: %w", err)
	}
	return policytable.New(ns), nil // until the process ends
}

// openPolicies creates the enforcer of network policies, or removes what an earlier one left if they are off. It does not use the
// API server yet.
func (n *node) openPolicies() error {
	if n.deps.PolicyTable == nil && !n.cfg.NetworkPolicies {
		return nil
	}
	table, err := n.deps.PolicyTable()
	if !n.cfg.NetworkPolicies {
		if err == nil {
			err = n.removePolicies(table)
		}
		if err != nil {
			n.log.Warn("removing network policies, which are off by now", "err", err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	api, err := kubeapi.Open(n.cfg.Kubeconfig)
	if err != nil {
		return fmt.Errorf("--network-policies: %w", err)
	}
	access := networkpolicy.Access{Namespace: n.cfg.NetworkPolicyNamespace, ConfigMap: api.ConfigMap, TokenFile: n.cfg.NetworkPolicyToken}
	var denials networkpolicy.Denials
	if log, err := table.OpenLog(); err == nil {
		denials = log
	} else {
		n.log.Warn("denied connections are not logged", "err", err)
	}
	n.policies = networkpolicy.New(networkpolicy.Options{
		Kernel: table, Denials: denials, OpenInside: openInside(table), Dial: access.Dial, Dir: n.cfg.NetworkPolicyDir, StartUnknown: n.cfg.NetworkPolicyUnknown == config.UnknownStart,
		Interval: n.cfg.RepairInterval, Metrics: networkpolicy.NewMetrics(n.metrics.Registry), Clock: n.clock, Log: n.log,
	})
	return nil
}

// openInside opens tables of pods.
func openInside(table PolicyTable) func(networkpolicy.Inside) (networkpolicy.PodKernel, networkpolicy.Denials, error) {
	return func(i networkpolicy.Inside) (networkpolicy.PodKernel, networkpolicy.Denials, error) {
		t, err := table.OpenInside(i.Netns, i.ID, i.Links)
		if err != nil {
			return nil, nil, err
		}
		if t.Log == nil {
			return t, nil, nil // as of the node, which says so
		}
		return t, t.Log, nil
	}
}

// removePolicies removes the table and the stored file, if they are there.
func (n *node) removePolicies(table PolicyTable) error {
	stored, err := networkpolicy.Discard(n.cfg.NetworkPolicyDir)
	if err != nil {
		return err
	}
	there, err := table.There()
	if there {
		err = table.Remove()
	}
	if err == nil && (there || stored) {
		n.log.Info("removed network policies, which are off by now")
	}
	return err
}
