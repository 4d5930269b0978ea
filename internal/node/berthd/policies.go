package berthd

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netns"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/kernel/policytable"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/policypart"
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

// openPolicies creates the enforcer of network policies for the attachments of a store, or removes what an earlier one left if they
// are off. It does not use the API server yet.
func (n *node) openPolicies(store *attachment.Store) error {
	if n.deps.PolicyTable == nil && !n.cfg.NetworkPolicies {
		return nil
	}
	table, err := n.deps.PolicyTable()
	if !n.cfg.NetworkPolicies {
		if err == nil {
			err = n.removePolicies(table, store)
		}
		if err != nil {
			n.log.Warn("removing the network policies left by an earlier run, since network policies are off", "err", err)
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
			return t, nil, nil // the caller logs this for the node's table
		}
		return t, t.Log, nil
	}
}

// removeInside removes the table of a pod. Without a namespace the pod is gone.
func removeInside(table PolicyTable, of networkpolicy.Inside) error {
	t, err := table.OpenInside(of.Netns, of.ID, of.Links)
	if errors.Is(err, rtnl.ErrNoNetns) {
		return nil
	} else if err != nil {
		return err
	}
	return errors.Join(t.Remove(), t.Close())
}

// removePolicies removes the tables and the stored file, if they are there. Pods have tables in their own namespaces only if the
// node has one.
func (n *node) removePolicies(table PolicyTable, store *attachment.Store) error {
	stored, err := networkpolicy.Discard(n.cfg.NetworkPolicyDir)
	there, tableErr := table.There()
	if err = errors.Join(err, tableErr); !there {
		return err
	}
	for _, rec := range store.Records() {
		if of := policypart.InsideOf(rec); of != nil {
			err = errors.Join(err, removeInside(table, *of))
		}
	}
	if err == nil { // last, since pods are searched only while it exists
		err = table.Remove()
	}
	if err == nil {
		n.log.Info("removed the network policies left by an earlier run, since network policies are off", "stored", stored)
	}
	return err
}
