package oracle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/node"
)

// portsAgree compares the pods of a whole cluster in port mode with PodNICs, the cloud's ports, the nodes'
// OVSDBs and berthd's reports, and returns the number of pods. It ignores the nodes in without.
func portsAgree(ctx context.Context, l *lab.Lab, without []string) (pods int, err error) {
	v := &portView{ports: map[string]portcloud.Port{}, pods: map[string]bool{}, used: map[string]string{}}
	if err := viewPorts(ctx, l, v); err != nil {
		return 0, err
	}
	list := &corev1.PodList{}
	if err := l.Kube.Client.List(ctx, list); err != nil {
		return 0, fmt.Errorf("list pods: %w", err)
	}
	for i := range v.nics {
		if slices.Contains(without, v.nics[i].Status.NodeName) {
			v.used[v.nics[i].Status.PortID] = v.nics[i].Status.NodeName
		}
	}
	for _, n := range l.Nodes() {
		if slices.Contains(without, n.Name) {
			continue
		}
		o := onNode{portView: v, node: n.Name, rows: map[string]bool{}, reported: map[string]string{}}
		if err := o.observe(ctx, l, n); err != nil {
			return 0, fmt.Errorf("node %s: %w", n.Name, err)
		}
		for i := range list.Items {
			p := &list.Items[i]
			if p.Spec.NodeName != n.Name || p.Spec.HostNetwork || p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
				continue
			}
			if err := o.check(p); err != nil {
				v.wrong("pod %s/%s: %w", p.Namespace, p.Name, err)
			}
			pods++
		}
		for port := range o.rows {
			v.wrong("port %s is in the OVSDB of %s, but in no pod there", port, n.Name)
		}
		for port, pod := range o.reported {
			v.wrong("berthd on %s reports that pod %s has port %s, but the pod does not have it", n.Name, pod, port)
		}
	}
	v.checkObjects()
	v.checkCloud()
	return pods, errors.Join(append(v.errs, l.Ports.Alive())...)
}

// onNode is the observed state of one node.
type onNode struct {
	*portView
	node     string
	rows     map[string]bool   // ports in its OVSDB
	reported map[string]string // pods by port, as berthd reports them
}

func (o onNode) observe(ctx context.Context, l *lab.Lab, n *node.Node) error {
	rows, err := l.Ports.Plugged(ctx, n.Name)
	if err != nil {
		return err
	}
	for _, r := range rows {
		o.rows[r.Port] = true
	}
	doc, err := lab.Document(ctx, n)
	for _, nic := range doc.NICs {
		o.reported[nic.Port] = nic.Namespace + "/" + nic.Pod
	}
	return err
}

// check compares a pod with its PodNICs, and removes what it finds from the node's state.
func (o onNode) check(p *corev1.Pod) error {
	var addresses []string // of eth0
	for i := range o.nics {
		n := &o.nics[i]
		if n.Status.Pod == nil || n.Status.Pod.UID != string(p.UID) {
			continue
		}
		id := n.Status.PortID
		port, pod := o.ports[id], p.Namespace+"/"+p.Name
		o.used[id] = o.node + "/" + pod
		switch report := n.Status.Node; {
		case n.Status.Phase != v1alpha1.PhaseActive || n.Status.NodeName != o.node:
			return fmt.Errorf("PodNIC %s on node %q: phase %s, want Active on %q", n.Name, n.Status.NodeName, phase(n), o.node)
		case port.Host != o.node || port.Status != "ACTIVE":
			return fmt.Errorf("port %s is %q on %q, want ACTIVE on %q", id, port.Status, port.Host, o.node)
		case !o.rows[id]:
			return fmt.Errorf("port %s is not in the OVSDB of %s", id, o.node)
		case o.reported[id] != pod:
			return fmt.Errorf("berthd reports %q as the owner of port %s", o.reported[id], id)
		case report == nil || report.State != v1alpha1.NodePlugged || report.PortID != id:
			return fmt.Errorf("PodNIC %s: its status.node is %+v", n.Name, report)
		}
		delete(o.rows, id)
		delete(o.reported, id)
		if n.Status.Interface == "eth0" {
			for _, a := range n.Status.Addresses {
				bare, _, _ := strings.Cut(a.CIDR, "/")
				addresses = append(addresses, bare)
			}
		}
	}
	if !slices.Contains(addresses, p.Status.PodIP) {
		return fmt.Errorf("the kubelet reports the address %q, but the port of eth0 has %v", p.Status.PodIP, addresses)
	}
	return nil
}
